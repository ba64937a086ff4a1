package cri

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/sandbox"
)

// ListPodSandbox lists sandboxes, newest first.
func (s *Server) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: s.listSandboxes(req.GetFilter())}, nil
}

func (s *Server) listSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var out []*runtimeapi.PodSandbox
	for _, b := range s.sandboxesOf(f.GetLabelSelector()) {
		if sandboxMatches(b, f) {
			out = append(out, b.Summary())
		}
	}
	slices.SortFunc(out, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
	return out
}

func sandboxMatches(b *sandbox.Sandbox, f *runtimeapi.PodSandboxFilter) bool {
	if f == nil {
		return true
	}
	return strings.HasPrefix(b.ID, f.GetId()) &&
		(f.GetState() == nil || f.GetState().GetState() == b.CRState()) &&
		hasLabels(b.Config.GetLabels(), f.GetLabelSelector())
}

// PodSandboxStatus returns everything known about a sandbox.
func (s *Server) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	b, err := s.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{Status: b.Status(), Timestamp: time.Now().UnixNano()}
	for _, c := range s.containersOf(b.ID) {
		resp.ContainersStatuses = append(resp.ContainersStatuses, c.Status())
	}
	if req.GetVerbose() {
		if resp.Info, err = b.Info(ctx); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// UpdatePodSandboxResources does nothing: the kubelet calls it with a pod's new resources after
// it has changed the pod's cgroup, and that is all there is to do.
func (s *Server) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if _, err := s.sandbox(req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}
