// Package crierror has the errors of the runtime with their gRPC codes, which callers in this process
// see as well as those over the socket.
package crierror

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

// NotFound says that there is no such object.
func NotFound(format string, args ...any) error {
	return &codedError{codes.NotFound, fmt.Errorf(format, args...)}
}

// Invalid says what is wrong with a request.
func Invalid(format string, args ...any) error {
	return &codedError{codes.InvalidArgument, fmt.Errorf(format, args...)}
}

// AlreadyExists says that the name is taken.
func AlreadyExists(format string, args ...any) error {
	return &codedError{codes.AlreadyExists, fmt.Errorf(format, args...)}
}

// Precondition says what has to change before the request can succeed.
func Precondition(format string, args ...any) error {
	return &codedError{codes.FailedPrecondition, fmt.Errorf(format, args...)}
}

// Unimplemented says that this runtime has no such thing.
func Unimplemented(what string) error {
	return &codedError{codes.Unimplemented, fmt.Errorf("%s is not supported by this runtime", what)}
}

// Timeout returns what a verb answers that took longer than its caller allowed.
func Timeout(format string, args ...any) error {
	return &codedError{codes.DeadlineExceeded, fmt.Errorf(format, args...)}
}

// ErrClosing answers a verb that comes while the runtime shuts down.
var ErrClosing = errors.New("the runtime is shutting down")

// ToStatus gives every error that leaves the package a gRPC code.
func ToStatus(err error) error {
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
	case errors.Is(err, ErrClosing):
		code = codes.Unavailable
	}
	return &codedError{code, err}
}

// IsNotFound reports whether err is a NotFound.
func IsNotFound(err error) bool {
	var coded *codedError
	return errors.As(err, &coded) && coded.code == codes.NotFound
}

// IsTimeout reports whether err is a Timeout.
func IsTimeout(err error) bool {
	var coded *codedError
	return errors.As(err, &coded) && coded.code == codes.DeadlineExceeded
}
