package metrics

import (
	"context"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime measures the calls of a runtime that matter for a pod's way.
type Runtime struct{ internalapi.RuntimeService }

// RunPodSandbox is measured by its handler, too.
func (r Runtime) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	began := time.Now()
	id, err := r.RuntimeService.RunPodSandbox(ctx, cfg, handler)
	Operation("run_podsandbox", began, err)
	RunSandbox.WithLabelValues(handler).Observe(time.Since(began).Seconds())
	StartedPods.Inc()
	if err != nil {
		StartedPodErrors.Inc()
	}
	return id, err
}

// StopPodSandbox is measured.
func (r Runtime) StopPodSandbox(ctx context.Context, id string) error {
	began := time.Now()
	err := r.RuntimeService.StopPodSandbox(ctx, id)
	Operation("stop_podsandbox", began, err)
	return err
}

// RemovePodSandbox is measured.
func (r Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	began := time.Now()
	err := r.RuntimeService.RemovePodSandbox(ctx, id)
	Operation("remove_podsandbox", began, err)
	return err
}

// CreateContainer is measured.
func (r Runtime) CreateContainer(ctx context.Context, id string, cfg *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	began := time.Now()
	container, err := r.RuntimeService.CreateContainer(ctx, id, cfg, sandbox)
	Operation("create_container", began, err)
	return container, err
}

// StartContainer is measured.
func (r Runtime) StartContainer(ctx context.Context, id string) error {
	began := time.Now()
	err := r.RuntimeService.StartContainer(ctx, id)
	Operation("start_container", began, err)
	return err
}

// StopContainer is measured.
func (r Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	began := time.Now()
	err := r.RuntimeService.StopContainer(ctx, id, timeout)
	Operation("stop_container", began, err)
	return err
}

// RemoveContainer is measured.
func (r Runtime) RemoveContainer(ctx context.Context, id string) error {
	began := time.Now()
	err := r.RuntimeService.RemoveContainer(ctx, id)
	Operation("remove_container", began, err)
	return err
}

// PodSandboxStatus is measured.
func (r Runtime) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	began := time.Now()
	resp, err := r.RuntimeService.PodSandboxStatus(ctx, id, verbose)
	Operation("podsandbox_status", began, err)
	return resp, err
}

// ListPodSandbox is measured.
func (r Runtime) ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	began := time.Now()
	list, err := r.RuntimeService.ListPodSandbox(ctx, f)
	Operation("list_podsandbox", began, err)
	return list, err
}

// ExecSync is measured.
func (r Runtime) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, []byte, error) {
	began := time.Now()
	stdout, stderr, err := r.RuntimeService.ExecSync(ctx, id, cmd, timeout)
	Operation("exec_sync", began, err)
	return stdout, stderr, err
}
