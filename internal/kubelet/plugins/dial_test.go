package plugins

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// TestSocketsWithLongPaths are reached, as those in a deep data dir are: the kernel itself takes 107 bytes.
func TestSocketsWithLongPaths(t *testing.T) {
	short, err := os.MkdirTemp("", "s") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(short, "x.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }() // it ends with Stop
	t.Cleanup(s.Stop)
	deep := filepath.Join(short, strings.Repeat("d", 120))
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(short, "x.sock"), filepath.Join(deep, "x.sock")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(deep, "x.sock"), "unix://" + filepath.Join(deep, "x.sock")} {
		conn, err := Dial(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
