package metrics

import (
	"context"
	"time"

	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime measures calls to a runtime, under the names that upstream gives them.
type Runtime struct{ internalapi.RuntimeService }

// Images measures calls to an image service.
type Images struct {
	internalapi.ImageManagerService
}

// called measures a call that returns only an error.
func called(name string, call func() error) error {
	began := time.Now()
	err := call()
	Operation(name, began, err)
	return err
}

// asked measures a call that returns a value.
func asked[T any](name string, call func() (T, error)) (T, error) {
	began := time.Now()
	answer, err := call()
	Operation(name, began, err)
	return answer, err
}

// RunPodSandbox is measured by handler, too.
func (r Runtime) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	began := time.Now()
	id, err := asked("run_podsandbox", func() (string, error) { return r.RuntimeService.RunPodSandbox(ctx, cfg, handler) })
	RunSandbox.WithLabelValues(handler).Observe(time.Since(began).Seconds())
	StartedPods.Inc()
	if err != nil {
		StartedPodErrors.Inc()
		RunSandboxErrors.WithLabelValues(handler).Inc()
	}
	return id, err
}

// ExecSync calls the service and measures the call.
func (r Runtime) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, []byte, error) {
	began := time.Now()
	stdout, stderr, err := r.RuntimeService.ExecSync(ctx, id, cmd, timeout)
	Operation("exec_sync", began, err)
	return stdout, stderr, err
}

// StartContainer calls the service and measures the call. Failures are counted by gRPC code.
func (r Runtime) StartContainer(ctx context.Context, id string) error {
	err := called("start_container", func() error { return r.RuntimeService.StartContainer(ctx, id) })
	if err != nil {
		StartedContainerErrors.WithLabelValues("container", status.Code(err).String()).Inc()
	}
	return err
}

// CheckpointContainer calls the service and measures the call.
func (r Runtime) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) error {
	return called("checkpoint_container", func() error { return r.RuntimeService.CheckpointContainer(ctx, req) })
}

// StopPodSandbox calls the service and measures the call.
func (r Runtime) StopPodSandbox(ctx context.Context, id string) error {
	return called("stop_podsandbox", func() error { return r.RuntimeService.StopPodSandbox(ctx, id) })
}

// RemovePodSandbox calls the service and measures the call.
func (r Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	return called("remove_podsandbox", func() error { return r.RuntimeService.RemovePodSandbox(ctx, id) })
}

// StopContainer calls the service and measures the call.
func (r Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	return called("stop_container", func() error { return r.RuntimeService.StopContainer(ctx, id, timeout) })
}

// RemoveContainer calls the service and measures the call.
func (r Runtime) RemoveContainer(ctx context.Context, id string) error {
	return called("remove_container", func() error { return r.RuntimeService.RemoveContainer(ctx, id) })
}

// ReopenContainerLog calls the service and measures the call.
func (r Runtime) ReopenContainerLog(ctx context.Context, id string) error {
	return called("reopen_container_log", func() error { return r.RuntimeService.ReopenContainerLog(ctx, id) })
}

// UpdateContainerResources calls the service and measures the call.
func (r Runtime) UpdateContainerResources(ctx context.Context, id string, res *runtimeapi.ContainerResources) error {
	return called("update_container", func() error { return r.RuntimeService.UpdateContainerResources(ctx, id, res) })
}

// CreateContainer calls the service and measures the call.
func (r Runtime) CreateContainer(ctx context.Context, id string, cfg *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	return asked("create_container", func() (string, error) { return r.RuntimeService.CreateContainer(ctx, id, cfg, sandbox) })
}

// PodSandboxStatus calls the service and measures the call.
func (r Runtime) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return asked("podsandbox_status", func() (*runtimeapi.PodSandboxStatusResponse, error) {
		return r.RuntimeService.PodSandboxStatus(ctx, id, verbose)
	})
}

// ListPodSandbox calls the service and measures the call.
func (r Runtime) ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return asked("list_podsandbox", func() ([]*runtimeapi.PodSandbox, error) { return r.RuntimeService.ListPodSandbox(ctx, f) })
}

// ListContainers calls the service and measures the call.
func (r Runtime) ListContainers(ctx context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return asked("list_containers", func() ([]*runtimeapi.Container, error) { return r.RuntimeService.ListContainers(ctx, f) })
}

// ContainerStatus calls the service and measures the call.
func (r Runtime) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	return asked("container_status", func() (*runtimeapi.ContainerStatusResponse, error) {
		return r.RuntimeService.ContainerStatus(ctx, id, verbose)
	})
}

// Version calls the service and measures the call.
func (r Runtime) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	return asked("version", func() (*runtimeapi.VersionResponse, error) { return r.RuntimeService.Version(ctx, apiVersion) })
}

// Status calls the service and measures the call.
func (r Runtime) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return asked("status", func() (*runtimeapi.StatusResponse, error) { return r.RuntimeService.Status(ctx, verbose) })
}

// Exec calls the service and measures the call.
func (r Runtime) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return asked("exec", func() (*runtimeapi.ExecResponse, error) { return r.RuntimeService.Exec(ctx, req) })
}

// Attach calls the service and measures the call.
func (r Runtime) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return asked("attach", func() (*runtimeapi.AttachResponse, error) { return r.RuntimeService.Attach(ctx, req) })
}

// PortForward calls the service and measures the call.
func (r Runtime) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return asked("port_forward", func() (*runtimeapi.PortForwardResponse, error) { return r.RuntimeService.PortForward(ctx, req) })
}

// ListPodSandboxStats calls the service and measures the call.
func (r Runtime) ListPodSandboxStats(ctx context.Context, f *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return asked("list_podsandbox_stats", func() ([]*runtimeapi.PodSandboxStats, error) { return r.RuntimeService.ListPodSandboxStats(ctx, f) })
}

// ListImages calls the service and measures the call.
func (r Images) ListImages(ctx context.Context, f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return asked("list_images", func() ([]*runtimeapi.Image, error) { return r.ImageManagerService.ListImages(ctx, f) })
}

// ImageStatus calls the service and measures the call.
func (r Images) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	return asked("image_status", func() (*runtimeapi.ImageStatusResponse, error) {
		return r.ImageManagerService.ImageStatus(ctx, image, verbose)
	})
}

// PullImage calls the service and measures the call.
func (r Images) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	return asked("pull_image", func() (string, error) { return r.ImageManagerService.PullImage(ctx, image, auth, sandbox) })
}

// RemoveImage calls the service and measures the call.
func (r Images) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	return called("remove_image", func() error { return r.ImageManagerService.RemoveImage(ctx, image) })
}

// ImageFsInfo calls the service and measures the call.
func (r Images) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return asked("image_fs_info", func() (*runtimeapi.ImageFsInfoResponse, error) { return r.ImageManagerService.ImageFsInfo(ctx) })
}
