// Package agents asks the kubelet what agents on its node ask it, by gRPC at a socket.
package agents

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Dial has run serve at a socket until the test ends, and returns a connection to it.
func Dial(t *testing.T, run func(ctx context.Context, socket string) error) *grpc.ClientConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "folder", "kubelet.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, socket) }()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		_ = os.RemoveAll(dir)
	})
	return conn
}
