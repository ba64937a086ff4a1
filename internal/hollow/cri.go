package hollow

import (
	"context"
	"crypto/sha256"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/nodestatus"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// What the kubelet's packages ask of a runtime, in the CRI's terms.
var (
	_ podworker.Runtime  = (*madeUp)(nil)
	_ nodestatus.Runtime = (*madeUp)(nil)
	_ nodestatus.Images  = (*madeUp)(nil)
)

// Status implements nodestatus.Runtime: all is well.
func (r *madeUp) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: true, UserNamespaces: true,
		}}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}, nil
}

// ListImages implements nodestatus.Images: every image is there, and none takes room.
func (r *madeUp) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return nil, nil
}

// ListPodSandbox implements podworker.Runtime, which asks for the sandboxes of one pod.
func (r *madeUp) ListPodSandbox(_ context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.PodSandbox
	for _, s := range r.pods[types.UID(f.GetLabelSelector()[pods.LabelPodUID])] {
		out = append(out, &runtimeapi.PodSandbox{Id: s.id})
	}
	return out, nil
}

// PodSandboxStatus implements podworker.Runtime. It has the statuses of the containers, too.
func (r *madeUp) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxLocked(id)
	if s == nil {
		return nil, errUnknown("sandbox", id)
	}
	out := &runtimeapi.PodSandboxStatusResponse{Timestamp: time.Now().UnixNano(), Status: s.status()}
	for _, c := range s.containers {
		out.ContainersStatuses = append(out.ContainersStatuses, c.status())
	}
	return out, nil
}

func (s *sandbox) status() *runtimeapi.PodSandboxStatus {
	st := &runtimeapi.PodSandboxStatus{
		Id: s.id, Metadata: &runtimeapi.PodSandboxMetadata{Attempt: s.attempt}, CreatedAt: s.created.UnixNano(),
		State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, Network: &runtimeapi.PodSandboxNetworkStatus{},
	}
	if s.ready {
		st.State = runtimeapi.PodSandboxState_SANDBOX_READY
		if s.ip.IsValid() {
			st.Network.Ip = s.ip.String()
		}
	}
	return st
}

func (c *instance) status() *runtimeapi.ContainerStatus {
	st := &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: &runtimeapi.ContainerMetadata{Name: c.name, Attempt: c.attempt},
		CreatedAt: nanos(c.created), StartedAt: nanos(c.started), FinishedAt: nanos(c.finished),
		ExitCode: c.exitCode, Reason: c.reason, Image: &runtimeapi.ImageSpec{Image: c.image}, ImageRef: imageID(c.image),
		Annotations: map[string]string{pods.AnnotationHash: c.hash},
	}
	switch {
	case !c.finished.IsZero():
		st.State = runtimeapi.ContainerState_CONTAINER_EXITED
	case !c.started.IsZero():
		st.State = runtimeapi.ContainerState_CONTAINER_RUNNING
	default:
		st.State = runtimeapi.ContainerState_CONTAINER_CREATED
	}
	return st
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// ListContainers implements podworker.Runtime, which does not need it: see PodSandboxStatus.
func (r *madeUp) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return nil, nil
}

// ContainerStatus implements podworker.Runtime, which does not need it either.
func (r *madeUp) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	return nil, errUnknown("container", id)
}

// probes returns the results of the probes of a pod: whatever runs has passed all of them.
func (r *madeUp) probes(uid types.UID) map[string]podplan.Probe {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]podplan.Probe{}
	for _, s := range r.pods[uid] {
		for _, c := range s.containers {
			if !c.started.IsZero() && c.finished.IsZero() {
				out[c.id] = podplan.Probe{Started: new(true), Ready: new(true)}
			}
		}
	}
	return out
}

func digest(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }
