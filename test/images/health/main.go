// Health answers gRPC health checks (grpc.health.v1) as serving, until it is run a second time with
// the argument "sick".
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	address = ":9090"
	// service is the only one that it knows.
	service = "tool"
	sick    = "/tmp/sick"
)

type server struct {
	healthpb.UnimplementedHealthServer
}

// Check implements healthpb.HealthServer.
func (server) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if req.GetService() != service {
		return nil, status.Errorf(codes.NotFound, "service %q is not known", req.GetService())
	}
	if _, err := os.Stat(sick); err == nil {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "sick" {
		return os.WriteFile(sick, nil, 0o600)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, server{})
	return s.Serve(l)
}
