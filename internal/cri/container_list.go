package cri

import (
	"cmp"
	"context"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/container"
)

// ListContainers lists containers, newest first.
func (s *Server) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.listContainers(req.GetFilter())}, nil
}

func (s *Server) listContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var out []*runtimeapi.Container
	for _, c := range s.matchingContainers(f) {
		out = append(out, c.Summary())
	}
	return out
}

// matchingContainers returns the containers that match the filter, newest first.
func (s *Server) matchingContainers(f *runtimeapi.ContainerFilter) []*container.Container {
	all := slices.DeleteFunc(s.allContainers(), func(c *container.Container) bool { return !containerMatches(c, f) })
	slices.SortFunc(all, func(a, b *container.Container) int {
		return cmp.Or(cmp.Compare(b.CreatedAt(), a.CreatedAt()), cmp.Compare(a.ID, b.ID))
	})
	return all
}

func containerMatches(c *container.Container, f *runtimeapi.ContainerFilter) bool {
	if f == nil {
		return true
	}
	return strings.HasPrefix(c.ID, f.GetId()) &&
		strings.HasPrefix(c.SandboxID(), f.GetPodSandboxId()) &&
		(f.GetState() == nil || f.GetState().GetState() == c.State()) &&
		hasLabels(c.Config().GetLabels(), f.GetLabelSelector())
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// ContainerStatus returns everything known about a container.
func (s *Server) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: c.Status()}
	if req.GetVerbose() {
		if resp.Info, err = c.Info(); err != nil {
			return nil, err
		}
	}
	return resp, nil
}
