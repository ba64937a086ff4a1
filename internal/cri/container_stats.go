package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
)

// ContainerStats returns the usage of one container.
func (s *Server) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := c.Stats()
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: st}, nil
}

// ListContainerStats returns the usage of the running containers.
func (s *Server) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	st, err := s.listContainerStats(req.GetFilter())
	return &runtimeapi.ListContainerStatsResponse{Stats: st}, err
}

func (s *Server) listContainerStats(f *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	running := &runtimeapi.ContainerFilter{
		Id: f.GetId(), PodSandboxId: f.GetPodSandboxId(), LabelSelector: f.GetLabelSelector(),
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}
	var out []*runtimeapi.ContainerStats
	for _, sum := range s.listContainers(running) {
		c, err := s.container(sum.GetId())
		if crierror.IsNotFound(err) {
			continue // removed in the meantime
		}
		if err != nil {
			return nil, err
		}
		st, err := c.Stats()
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	return out, nil
}
