package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/trace"
)

// RemoveContainer removes a container, killing it if it runs. It can be repeated; a container
// that does not exist counts as removed. The log stays: it belongs to the kubelet.
func (s *Server) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := s.container(req.GetContainerId())
	if crierror.IsNotFound(err) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, s.uidOf(c))
	if err := s.removeContainer(ctx, c); err != nil {
		return nil, fmt.Errorf("remove container %s: %w", c.ID, err)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (s *Server) removeContainer(ctx context.Context, c *container.Container) error {
	return c.Remove(ctx, func() {
		b := s.sandboxOf(c)
		s.dropContainer(c)
		if b != nil {
			s.emit(c.ID, b, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
		}
	})
}
