package fakecri

import (
	"context"
	"io"
	"maps"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Service is the runtime as the kubelet sees it; Runtime itself has a field where
// the interface has the method Exec.
type Service struct{ *Runtime }

var _ internalapi.RuntimeService = Service{}
var _ internalapi.ImageManagerService = Images{}

// Exec prepares an exec.
func (s Service) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return s.ExecURL(ctx, req)
}

// Version returns the runtime's name and version.
func (r *Runtime) Version(ctx context.Context, _ string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "0.1.0", RuntimeApiVersion: "v1",
	}, r.begin(ctx, "Version", "")
}

// Status reports whether runtime and network are ready.
func (r *Runtime) Status(ctx context.Context, _ bool) (*runtimeapi.StatusResponse, error) {
	if err := r.begin(ctx, "Status", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: r.NotReady == "", Reason: r.NotReady, Message: r.NotReady}
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, network,
		}},
		RuntimeHandlers: r.handlers(),
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}, nil
}

func (r *Runtime) handlers() []*runtimeapi.RuntimeHandler {
	out := []*runtimeapi.RuntimeHandler{{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}}
	for _, name := range r.Handlers {
		out = append(out, &runtimeapi.RuntimeHandler{Name: name, Features: &runtimeapi.RuntimeHandlerFeatures{}})
	}
	return out
}

// SetNotReady sets why the network is not ready.
func (r *Runtime) SetNotReady(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.NotReady = reason
}

// GetContainerEvents delivers events until the context ends, or EndEvents says so.
func (r *Runtime) GetContainerEvents(ctx context.Context, ch chan *runtimeapi.ContainerEventResponse, connected func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	if r.NoEvents {
		return unimplemented("GetContainerEvents")
	}
	in := make(chan *runtimeapi.ContainerEventResponse, 100)
	r.mu.Lock()
	r.listeners[in] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.listeners, in)
		r.mu.Unlock()
	}()
	if connected != nil {
		connected(nil)
	}
	if r.EndEvents != nil && r.EndEvents() {
		return io.EOF
	}
	for {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case ev := <-in:
			select {
			case ch <- ev:
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
	}
}

// UpdateRuntimeConfig accepts anything.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *runtimeapi.RuntimeConfig) error { return nil }

// RuntimeConfig says that cgroups are plain folders, not systemd's.
func (r *Runtime) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// Close does nothing.
func (r *Runtime) Close(context.Context) error { return nil }

// The fake has no statistics and no checkpoints.

// CheckpointContainer is not implemented.
func (r *Runtime) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) error {
	return unimplemented("CheckpointContainer")
}

// CheckpointPod is not implemented.
func (r *Runtime) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) error {
	return unimplemented("CheckpointPod")
}

// RestorePod is not implemented.
func (r *Runtime) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, unimplemented("RestorePod")
}

// ContainerStats is not implemented.
func (r *Runtime) ContainerStats(context.Context, string) (*runtimeapi.ContainerStats, error) {
	return nil, unimplemented("ContainerStats")
}

// ListContainerStats returns an empty list.
func (r *Runtime) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return nil, nil
}

// PodSandboxStats is not implemented.
func (r *Runtime) PodSandboxStats(context.Context, string) (*runtimeapi.PodSandboxStats, error) {
	return nil, unimplemented("PodSandboxStats")
}

// ListPodSandboxStats returns an empty list.
func (r *Runtime) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, nil
}

// ListMetricDescriptors returns an empty list.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics returns an empty list.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return nil, nil
}

// Images is the runtime's image service.
type Images struct{ *Runtime }

// AddImage puts an image on the node.
func (r *Runtime) AddImage(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registry[name] = true
	r.addImageLocked(name)
}

// Publish puts an image into the registry only.
func (r *Runtime) Publish(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registry[name] = true
}

func (r *Runtime) addImageLocked(name string) *runtimeapi.Image {
	img := &runtimeapi.Image{Id: "sha256:" + name, RepoTags: []string{name}, Size: 4 << 20, Uid: &runtimeapi.Int64Value{Value: 0}}
	r.images[name], r.images[img.Id] = img, img
	return img
}

// ListImages lists the images on the node.
func (i Images) ListImages(ctx context.Context, _ *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	if err := i.begin(ctx, "ListImages", ""); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var out []*runtimeapi.Image
	for name, img := range i.images {
		if name == img.Id {
			out = append(out, img)
		}
	}
	return out, nil
}

// ImageStatus returns an image that is on the node, or nil.
func (i Images) ImageStatus(ctx context.Context, spec *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	if err := i.begin(ctx, "ImageStatus", spec.Image); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: i.images[spec.Image]}, nil
}

// PullImage pulls an image from the registry.
func (i Images) PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	if err := i.begin(ctx, "PullImage", spec.Image); err != nil {
		return "", err
	}
	if i.Authorize != nil {
		if err := i.Authorize(spec.Image, auth); err != nil {
			return "", status.Errorf(codes.Unknown, "failed to pull and unpack image %q: %v", spec.Image, err)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.registry[spec.Image] {
		return "", status.Errorf(codes.NotFound, "failed to pull and unpack image %q: not found", spec.Image)
	}
	return i.addImageLocked(spec.Image).Id, nil
}

// RemoveImage removes an image from the node.
func (i Images) RemoveImage(ctx context.Context, spec *runtimeapi.ImageSpec) error {
	if err := i.begin(ctx, "RemoveImage", spec.Image); err != nil {
		return err
	}
	i.DropImage(spec.Image)
	return nil
}

// DropImage removes an image from the node.
func (r *Runtime) DropImage(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if img := r.images[name]; img != nil {
		maps.DeleteFunc(r.images, func(_ string, o *runtimeapi.Image) bool { return o == img })
	}
}

// ImageFsInfo returns an empty response.
func (i Images) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}
