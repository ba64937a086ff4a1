package fakecri

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPodSandbox makes a sandbox.
func (r *Runtime) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	if err := r.begin(ctx, "RunPodSandbox", cfg.Metadata.Name); err != nil {
		return "", err
	}
	if r.Handlers != nil && handler != "" && !slices.Contains(r.Handlers, handler) {
		return "", status.Errorf(codes.Unknown, "failed to get sandbox runtime: no runtime for %q is configured", handler)
	}
	r.mu.Lock()
	for _, s := range r.sandboxes {
		if s.cfg.Metadata.Uid != cfg.Metadata.Uid {
			continue
		}
		if s.cfg.Metadata.Attempt == cfg.Metadata.Attempt {
			r.mu.Unlock()
			return s.id, nil // a retry gets the same sandbox
		}
		if s.ready {
			r.violateLocked("second ready sandbox of pod %s", cfg.Metadata.Uid)
		}
	}
	s := &sandbox{id: r.idLocked("sandbox"), cfg: cfg, ready: true, created: time.Now(), handler: handler, containers: map[string]*container{}}
	r.sandboxes[s.id] = s
	ip := fmt.Sprintf("10.88.%d.%d", r.next/250, r.next%250+2)
	if r.Plug > 0 {
		r.mu.Unlock()
		if err := sleep(ctx, r.Plug); err != nil {
			return "", err
		}
		r.mu.Lock()
	}
	if cfg.Linux.GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		s.ip = ip
	}
	r.changedLocked("made", s, nil)
	r.tellLocked(s, s.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	r.mu.Unlock()
	return s.id, r.end("RunPodSandbox", cfg.Metadata.Name)
}

// StopPodSandbox stops a sandbox and kills what runs in it.
func (r *Runtime) StopPodSandbox(ctx context.Context, id string) error {
	if err := r.begin(ctx, "StopPodSandbox", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		r.stopSandboxLocked(s)
	}
	return r.end("StopPodSandbox", id)
}

// RemovePodSandbox removes a sandbox and its containers.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	if err := r.begin(ctx, "RemovePodSandbox", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil
	}
	r.stopSandboxLocked(s)
	for _, c := range r.inLocked(s) {
		r.dropLocked(c)
	}
	delete(r.sandboxes, id)
	r.changedLocked("removed", s, nil)
	r.tellLocked(s, id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return r.end("RemovePodSandbox", id)
}

// PodSandboxStatus returns a sandbox with its containers.
func (r *Runtime) PodSandboxStatus(ctx context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := r.begin(ctx, "PodSandboxStatus", id); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil, notFound("sandbox", id)
	}
	resp := &runtimeapi.PodSandboxStatusResponse{Status: s.status()}
	if r.NoEvents {
		return resp, nil
	}
	resp.Timestamp = time.Now().UnixNano()
	for _, c := range r.inLocked(s) {
		resp.ContainersStatuses = append(resp.ContainersStatuses, c.status())
	}
	return resp, nil
}

// ListPodSandbox lists sandboxes.
func (r *Runtime) ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	if err := r.begin(ctx, "ListPodSandbox", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.PodSandbox
	for _, id := range slices.Sorted(maps.Keys(r.sandboxes)) {
		s := r.sandboxes[id]
		st := s.status()
		if f.GetId() != "" && f.Id != s.id || !selects(f.GetLabelSelector(), s.cfg.Labels) {
			continue
		}
		out = append(out, &runtimeapi.PodSandbox{
			Id: s.id, Metadata: st.Metadata, State: st.State, CreatedAt: st.CreatedAt, Labels: st.Labels, Annotations: st.Annotations,
		})
	}
	return out, nil
}

func selects(want, have map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// PortForward returns an address that nobody listens on.
func (r *Runtime) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return &runtimeapi.PortForwardResponse{Url: "http://127.0.0.1:1/portforward/" + req.PodSandboxId}, r.begin(ctx, "PortForward", req.PodSandboxId)
}

// UpdatePodSandboxResources accepts anything.
func (r *Runtime) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, r.begin(ctx, "UpdatePodSandboxResources", req.PodSandboxId)
}

func unimplemented(call string) error {
	return status.Errorf(codes.Unimplemented, "the fake runtime has no %s", call)
}
