package cri

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListPodSandbox lists sandboxes, newest first.
func (s *Server) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: s.listSandboxes(req.GetFilter())}, nil
}

func (s *Server) listSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var out []*runtimeapi.PodSandbox
	for _, b := range s.allSandboxes() {
		if b.matches(f) {
			out = append(out, b.summary())
		}
	}
	slices.SortFunc(out, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
	return out
}

func (s *Server) allSandboxes() []*sandbox {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*sandbox, 0, len(s.sandboxes))
	for _, b := range s.sandboxes {
		all = append(all, b)
	}
	return all
}

func (b *sandbox) matches(f *runtimeapi.PodSandboxFilter) bool {
	if f == nil {
		return true
	}
	return strings.HasPrefix(b.id, f.GetId()) &&
		(f.GetState() == nil || f.GetState().GetState() == b.crState()) &&
		hasLabels(b.config.GetLabels(), f.GetLabelSelector())
}

func (b *sandbox) summary() *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id: b.id, Metadata: b.config.GetMetadata(), State: b.crState(), CreatedAt: b.rec.CreatedAt,
		Labels: b.config.GetLabels(), Annotations: b.config.GetAnnotations(), RuntimeHandler: b.rec.Handler,
	}
}

// PodSandboxStatus returns everything known about a sandbox.
func (s *Server) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	b, err := s.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{Status: s.sandboxStatus(b), Timestamp: nanos(time.Now())}
	for _, c := range s.containersOf(b.id) {
		resp.ContainersStatuses = append(resp.ContainersStatuses, s.containerStatus(c))
	}
	if req.GetVerbose() {
		if resp.Info, err = s.sandboxInfo(ctx, b); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (s *Server) sandboxStatus(b *sandbox) *runtimeapi.PodSandboxStatus {
	status := b.current()
	st := &runtimeapi.PodSandboxStatus{
		Id: b.id, Metadata: b.config.GetMetadata(), State: b.crState(), CreatedAt: b.rec.CreatedAt,
		Labels: b.config.GetLabels(), Annotations: b.config.GetAnnotations(), RuntimeHandler: b.rec.Handler,
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: b.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	if at := status.Network; at != nil && status.Phase == phaseReady {
		for i, ip := range at.IPs {
			if i == 0 {
				st.Network.Ip = ip.String()
				continue
			}
			st.Network.AdditionalIps = append(st.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip.String()})
		}
	}
	return st
}

// UpdatePodSandboxResources does nothing: the kubelet calls it with a pod's new resources after
// it has changed the pod's cgroup, and that is all there is to do.
func (s *Server) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if _, err := s.findSandbox(req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}
