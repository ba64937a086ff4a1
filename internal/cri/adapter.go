package cri

import (
	"context"
	"fmt"
	"strings"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"

	"wherry.dev/internal/cri/crierror"
)

// Runtime returns the RuntimeService for callers in this process: the same verbs as over the
// socket, without the socket. Errors carry the same gRPC codes.
func (s *Server) Runtime() internalapi.RuntimeService {
	return runtimeAdapter{runtimeServer{Server: s}}
}

// Images returns the ImageService for callers in this process.
func (s *Server) Images() internalapi.ImageManagerService { return imageAdapter{s} }

type runtimeAdapter struct{ s runtimeServer }

type imageAdapter struct{ s *Server }

// call runs a verb and gives its error a gRPC code.
func call[Req, Resp any](ctx context.Context, verb func(context.Context, Req) (Resp, error), req Req) (Resp, error) {
	resp, err := verb(ctx, req)
	return resp, crierror.ToStatus(err)
}

func (a runtimeAdapter) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	return call(ctx, a.s.Version, &runtimeapi.VersionRequest{Version: apiVersion})
}

func (a runtimeAdapter) CreateContainer(ctx context.Context, sandboxID string, c *runtimeapi.ContainerConfig, b *runtimeapi.PodSandboxConfig) (string, error) {
	resp, err := call(ctx, a.s.CreateContainer, &runtimeapi.CreateContainerRequest{PodSandboxId: sandboxID, Config: c, SandboxConfig: b})
	return resp.GetContainerId(), err
}

func (a runtimeAdapter) StartContainer(ctx context.Context, id string) error {
	_, err := call(ctx, a.s.StartContainer, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

func (a runtimeAdapter) StopContainer(ctx context.Context, id string, timeout int64) error {
	_, err := call(ctx, a.s.StopContainer, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeout})
	return err
}

func (a runtimeAdapter) RemoveContainer(ctx context.Context, id string) error {
	_, err := call(ctx, a.s.RemoveContainer, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return err
}

func (a runtimeAdapter) ListContainers(_ context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return a.s.listContainers(f), nil
}

func (a runtimeAdapter) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	return call(ctx, a.s.ContainerStatus, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: verbose})
}

func (a runtimeAdapter) UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.ContainerResources) error {
	_, err := call(ctx, a.s.UpdateContainerResources, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r.GetLinux()})
	return err
}

// ExecSync reports a command that failed as a utilexec.CodeExitError, and one that
// timed out as remote.ErrCommandTimedOut, as CRI's client does.
func (a runtimeAdapter) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	req := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: int64((timeout + time.Second - 1) / time.Second)}
	resp, err := call(ctx, a.s.ExecSync, req)
	if crierror.IsTimeout(err) {
		return nil, nil, fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(cmd, " "), timeout)
	}
	if err != nil {
		return nil, nil, err
	}
	if code := resp.GetExitCode(); code != 0 {
		err = utilexec.CodeExitError{
			Err:  fmt.Errorf("command '%s' exited with %d: %s", strings.Join(cmd, " "), code, resp.GetStderr()),
			Code: int(code),
		}
	}
	return resp.GetStdout(), resp.GetStderr(), err
}

func (a runtimeAdapter) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return call(ctx, a.s.Exec, req)
}

func (a runtimeAdapter) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return call(ctx, a.s.Attach, req)
}

func (a runtimeAdapter) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return call(ctx, a.s.PortForward, req)
}

func (a runtimeAdapter) ReopenContainerLog(ctx context.Context, id string) error {
	_, err := call(ctx, a.s.ReopenContainerLog, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

func (a runtimeAdapter) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) error {
	_, err := call(ctx, a.s.CheckpointContainer, req)
	return err
}

// GetContainerEvents sends events to ch until ctx ends. It calls connected, with nil, as soon as
// no event can be missed.
func (a runtimeAdapter) GetContainerEvents(ctx context.Context, ch chan *runtimeapi.ContainerEventResponse, connected func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	sub := a.s.events.subscribe()
	defer a.s.events.unsubscribe(sub)
	if connected != nil {
		connected(nil)
	}
	return crierror.ToStatus(forward(ctx, sub, func(e *runtimeapi.ContainerEventResponse) error {
		select {
		case ch <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
}

func (a runtimeAdapter) RunPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	resp, err := call(ctx, a.s.RunPodSandbox, &runtimeapi.RunPodSandboxRequest{Config: c, RuntimeHandler: handler})
	return resp.GetPodSandboxId(), err
}

func (a runtimeAdapter) StopPodSandbox(ctx context.Context, id string) error {
	_, err := call(ctx, a.s.StopPodSandbox, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

func (a runtimeAdapter) RemovePodSandbox(ctx context.Context, id string) error {
	_, err := call(ctx, a.s.RemovePodSandbox, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

func (a runtimeAdapter) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return call(ctx, a.s.PodSandboxStatus, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: verbose})
}

func (a runtimeAdapter) ListPodSandbox(_ context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return a.s.listSandboxes(f), nil
}

func (a runtimeAdapter) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, a.s.UpdatePodSandboxResources, req)
}

func (a runtimeAdapter) CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) error {
	_, err := call(ctx, a.s.CheckpointPod, req)
	return err
}

func (a runtimeAdapter) RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return call(ctx, a.s.RestorePod, req)
}

func (a runtimeAdapter) ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error) {
	resp, err := call(ctx, a.s.ContainerStats, &runtimeapi.ContainerStatsRequest{ContainerId: id})
	return resp.GetStats(), err
}

func (a runtimeAdapter) ListContainerStats(_ context.Context, f *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	all, err := a.s.listContainerStats(f)
	return all, crierror.ToStatus(err)
}

func (a runtimeAdapter) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	resp, err := call(ctx, a.s.PodSandboxStats, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
	return resp.GetStats(), err
}

func (a runtimeAdapter) ListPodSandboxStats(_ context.Context, f *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	all, err := a.s.listPodStats(f)
	return all, crierror.ToStatus(err)
}

func (a runtimeAdapter) ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	resp, err := call(ctx, a.s.ListMetricDescriptors, &runtimeapi.ListMetricDescriptorsRequest{})
	return resp.GetDescriptors(), err
}

func (a runtimeAdapter) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	resp, err := call(ctx, a.s.ListPodSandboxMetrics, &runtimeapi.ListPodSandboxMetricsRequest{})
	return resp.GetPodMetrics(), err
}

func (a runtimeAdapter) UpdateRuntimeConfig(ctx context.Context, c *runtimeapi.RuntimeConfig) error {
	_, err := call(ctx, a.s.UpdateRuntimeConfig, &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: c})
	return err
}

func (a runtimeAdapter) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return call(ctx, a.s.Status, &runtimeapi.StatusRequest{Verbose: verbose})
}

func (a runtimeAdapter) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return call(ctx, a.s.RuntimeConfig, &runtimeapi.RuntimeConfigRequest{})
}

// Close does nothing: there is no connection.
func (a runtimeAdapter) Close(context.Context) error { return nil }

func (a imageAdapter) ListImages(_ context.Context, f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return a.s.All(f), nil
}

func (a imageAdapter) ImageStatus(ctx context.Context, img *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	return call(ctx, a.s.ImageStatus, &runtimeapi.ImageStatusRequest{Image: img, Verbose: verbose})
}

func (a imageAdapter) PullImage(ctx context.Context, img *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, b *runtimeapi.PodSandboxConfig) (string, error) {
	resp, err := call(ctx, a.s.PullImage, &runtimeapi.PullImageRequest{Image: img, Auth: auth, SandboxConfig: b})
	return resp.GetImageRef(), err
}

func (a imageAdapter) RemoveImage(ctx context.Context, img *runtimeapi.ImageSpec) error {
	_, err := call(ctx, a.s.RemoveImage, &runtimeapi.RemoveImageRequest{Image: img})
	return err
}

func (a imageAdapter) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return call(ctx, a.s.ImageFsInfo, &runtimeapi.ImageFsInfoRequest{})
}

// Close does nothing: there is no connection.
func (a imageAdapter) Close(context.Context) error { return nil }
