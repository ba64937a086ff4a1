// Package agentsocket serves agents on the node by gRPC at a socket that only root can reach.
package agentsocket

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"wherry.dev/internal/inbound"
)

// Upstream's limits of requests; streams that are open do not count.
const (
	requestsPerSecond = 100
	burst             = 10
)

// Serve serves at a socket what register adds, until ctx ends. The socket's folder is made, and what is left of an earlier
// socket removed.
func Serve(ctx context.Context, socket string, register func(*grpc.Server)) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return err
	}
	l, err := inbound.ListenRoot(ctx, socket)
	if err != nil {
		return err
	}
	limit := rate.NewLimiter(requestsPerSecond, burst)
	s := grpc.NewServer(grpc.UnaryInterceptor(limited(limit)), grpc.StreamInterceptor(limitedStream(limit)))
	register(s)
	defer context.AfterFunc(ctx, s.Stop)()
	if err := s.Serve(l); err != nil {
		return fmt.Errorf("%s: %w", socket, err)
	}
	return nil
}

var errTooMany = status.Error(codes.ResourceExhausted, "rejected by rate limit")

// limited refuses requests beyond a limit.
func limited(limit *rate.Limiter) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !limit.Allow() {
			return nil, errTooMany
		}
		return handle(ctx, req)
	}
}

func limitedStream(limit *rate.Limiter) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if !limit.Allow() {
			return errTooMany
		}
		return handle(srv, stream)
	}
}
