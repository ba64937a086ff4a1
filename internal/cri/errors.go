package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// codedError carries the gRPC code that the edge answers with.
type codedError struct {
	code codes.Code
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// GRPCStatus gives in-process callers the same status that callers over the socket see.
func (e *codedError) GRPCStatus() *status.Status { return status.New(e.code, e.err.Error()) }

func notFound(format string, args ...any) error {
	return &codedError{codes.NotFound, fmt.Errorf(format, args...)}
}

func invalid(format string, args ...any) error {
	return &codedError{codes.InvalidArgument, fmt.Errorf(format, args...)}
}

func alreadyExists(format string, args ...any) error {
	return &codedError{codes.AlreadyExists, fmt.Errorf(format, args...)}
}

func precondition(format string, args ...any) error {
	return &codedError{codes.FailedPrecondition, fmt.Errorf(format, args...)}
}

func unimplemented(what string) error {
	return &codedError{codes.Unimplemented, fmt.Errorf("%s is not supported by this runtime", what)}
}

// toStatus gives every error that leaves the package a gRPC code.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if coded, ok := errors.AsType[*codedError](err); ok {
		return &codedError{coded.code, err}
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Unknown
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, errClosing):
		code = codes.Unavailable
	}
	return &codedError{code, err}
}

func isNotFound(err error) bool {
	var coded *codedError
	return errors.As(err, &coded) && coded.code == codes.NotFound
}

func isTimeout(err error) bool {
	var coded *codedError
	return errors.As(err, &coded) && coded.code == codes.DeadlineExceeded
}
