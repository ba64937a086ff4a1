package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/trace"
)

// StartContainer starts a created container.
func (s *Server) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	b := s.sandboxOf(c)
	if b == nil {
		return nil, crierror.NotFound("sandbox %s of container %s not found", c.SandboxID(), c.ID)
	}
	ctx = trace.WithPod(ctx, b.UID())
	b.Op.RLock()
	defer b.Op.RUnlock()
	if !b.Ready() {
		return nil, crierror.Precondition("sandbox %s is not ready", b.ID)
	}
	started := func() { s.emit(c.ID, b, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT) }
	if err := c.Start(ctx, started); err != nil {
		return nil, fmt.Errorf("start container %s: %w", c.Config().GetMetadata().GetName(), err)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}
