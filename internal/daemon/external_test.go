package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/config"
)

// slowRuntime has one pod, and remembers how long it would have had for the pod's end.
type slowRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	stop    time.Duration
	removed string
}

func (*slowRuntime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "slow", RuntimeVersion: "1", RuntimeApiVersion: "v1"}, nil
}

func (*slowRuntime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

func (*slowRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

func (*slowRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "sb"}}}, nil
}

func (r *slowRuntime) StopPodSandbox(ctx context.Context, _ *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	end, _ := ctx.Deadline()
	r.stop = time.Until(end)
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (r *slowRuntime) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.removed = req.PodSandboxId
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// TestOtherRuntimesHaveTimeToAnswer: calls used to end after ten seconds, which is what Docker waits
// for a pause container alone; `wherry down` then failed.
func TestOtherRuntimesHaveTimeToAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	rt, srv := &slowRuntime{}, grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(srv, rt)
	runtimeapi.RegisterImageServiceServer(srv, rt)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	pods := t.TempDir()
	if err := os.Mkdir(filepath.Join(pods, "uid"), 0o700); err != nil {
		t.Fatal(err)
	}
	dirs, err := os.ReadDir(pods)
	if err != nil {
		t.Fatal(err)
	}
	if err := removePods(t.Context(), &config.Config{RuntimeEndpoint: "unix://" + socket}, dirs); err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if rt.stop < time.Minute || rt.removed != "sb" {
		t.Errorf("StopPodSandbox may take %v; removed: %q", rt.stop, rt.removed)
	}
}
