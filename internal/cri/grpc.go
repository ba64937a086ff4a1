package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/inbound"
)

// maxMessage bounds a gRPC message in both directions, as the kubelet does.
const maxMessage = 16 << 20

// streamBatch is the number of items in one message of a streamed list.
const streamBatch = 200

// runtimeServer is the RuntimeService over gRPC.
type runtimeServer struct {
	runtimeapi.UnsafeRuntimeServiceServer
	*Server
}

type imageServer struct {
	runtimeapi.UnsafeImageServiceServer
	*Server
}

// ListContainers returns the Server's list, assembled from encoded containers.
func (r runtimeServer) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	found := r.matchingContainers(req.GetFilter())
	items := make([][]byte, len(found))
	for i, c := range found {
		var err error
		if items[i], err = c.Wire(); err != nil {
			return nil, err
		}
	}
	// Unknown fields of a message are sent as they are.
	resp := &runtimeapi.ListContainersResponse{}
	resp.ProtoReflect().SetUnknown(bytes.Join(items, nil))
	return resp, nil
}

// inBatches sends a list in messages well below the size limit.
func inBatches[T any](items []T, send func([]T) error) error {
	for batch := range slices.Chunk(items, streamBatch) {
		if err := send(batch); err != nil {
			return err
		}
	}
	return nil
}

// StreamPodSandboxes is ListPodSandbox without a size limit.
func (s *Server) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	return inBatches(s.listSandboxes(req.GetFilter()), func(b []*runtimeapi.PodSandbox) error {
		return stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: b})
	})
}

// StreamContainers is ListContainers without a size limit.
func (s *Server) StreamContainers(req *runtimeapi.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return inBatches(s.listContainers(req.GetFilter()), func(b []*runtimeapi.Container) error {
		return stream.Send(&runtimeapi.StreamContainersResponse{Containers: b})
	})
}

// StreamContainerStats is ListContainerStats without a size limit.
func (s *Server) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	all, err := s.listContainerStats(req.GetFilter())
	if err != nil {
		return err
	}
	return inBatches(all, func(b []*runtimeapi.ContainerStats) error {
		return stream.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: b})
	})
}

// StreamPodSandboxStats is ListPodSandboxStats without a size limit.
func (s *Server) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	all, err := s.listPodStats(req.GetFilter())
	if err != nil {
		return err
	}
	return inBatches(all, func(b []*runtimeapi.PodSandboxStats) error {
		return stream.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: b})
	})
}

// StreamImages is ListImages without a size limit.
func (s *Server) StreamImages(req *runtimeapi.StreamImagesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	return inBatches(s.All(req.GetFilter()), func(b []*runtimeapi.Image) error {
		return stream.Send(&runtimeapi.StreamImagesResponse{Images: b})
	})
}

// serveSocket serves both services until ctx ends.
func (s *Server) serveSocket(ctx context.Context) error {
	srv := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			resp, err := next(ctx, req)
			return resp, crierror.ToStatus(err)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return crierror.ToStatus(next(srv, stream))
		}),
	)
	runtimeapi.RegisterRuntimeServiceServer(srv, runtimeServer{Server: s})
	runtimeapi.RegisterImageServiceServer(srv, imageServer{Server: s})
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	if err := srv.Serve(s.socket); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve CRI socket %s: %w", s.cfg.Socket, err)
	}
	return nil
}

// listenSocket binds the socket for root alone. It replaces a socket that nobody listens on; one
// that answers belongs to another runtime.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, err
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		return nil, errors.Join(errors.New("another process is already serving it"), c.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) { // somebody may serve it who has no time just now
		return nil, err
	}
	return inbound.ListenRoot(ctx, path)
}
