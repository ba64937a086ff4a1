package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/sandbox"
)

// PodSandboxStats returns a pod's usage: of its cgroup, network and containers.
func (s *Server) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	b, err := s.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := s.podStats(b)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: st}, nil
}

// ListPodSandboxStats returns the usage of the pods that are ready.
func (s *Server) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	st, err := s.listPodStats(req.GetFilter())
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: st}, err
}

func (s *Server) listPodStats(f *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	filter := &runtimeapi.PodSandboxFilter{Id: f.GetId(), LabelSelector: f.GetLabelSelector()}
	var out []*runtimeapi.PodSandboxStats
	for _, b := range s.allSandboxes() {
		if !b.Ready() || !sandboxMatches(b, filter) {
			continue
		}
		st, err := s.podStats(b)
		if err != nil {
			if !b.Ready() {
				continue // stopped in the meantime
			}
			return nil, err
		}
		out = append(out, st)
	}
	return out, nil
}

func (s *Server) podStats(b *sandbox.Sandbox) (st *runtimeapi.PodSandboxStats, err error) {
	if st, err = b.Stats(); err != nil {
		return nil, err
	}
	st.Linux.Containers, err = s.listContainerStats(&runtimeapi.ContainerStatsFilter{PodSandboxId: b.ID})
	return st, err
}
