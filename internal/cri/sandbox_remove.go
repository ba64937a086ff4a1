package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/trace"
)

// RemovePodSandbox removes a sandbox and what is left of its containers. It can be repeated; a
// sandbox that does not exist counts as removed.
func (s *Server) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	b, err := s.sandbox(req.GetPodSandboxId())
	if crierror.IsNotFound(err) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, b.UID())
	b.Op.Lock()
	defer b.Op.Unlock()
	if err := s.removeSandbox(ctx, b); err != nil {
		return nil, fmt.Errorf("remove sandbox %s: %w", b.ID, err)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// removeSandbox needs b.op write-locked.
func (s *Server) removeSandbox(ctx context.Context, b *sandbox.Sandbox) (err error) {
	ctx, span := trace.Start(ctx, "cri: remove sandbox")
	defer func() { _ = trace.End(span, err) }()
	if !s.hasSandbox(b.ID) {
		return nil // another call removed it while this one waited
	}
	if err := s.stopSandbox(ctx, b); err != nil {
		return err
	}
	if err := s.eachContainer(b, func(c *container.Container) error { return s.removeContainer(ctx, c) }); err != nil {
		return err
	}
	if err := b.Clear(ctx); err != nil {
		return err
	}
	s.dropSandbox(b)
	s.emit(b.ID, b, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}
