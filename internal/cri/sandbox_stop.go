package cri

import (
	"context"
	"errors"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/container"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/trace"
)

// StopPodSandbox kills the containers of a sandbox and releases its network. It can be repeated;
// a sandbox that does not exist counts as stopped.
func (s *Server) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	b, err := s.sandbox(req.GetPodSandboxId())
	if crierror.IsNotFound(err) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, b.UID())
	b.Op.Lock()
	defer b.Op.Unlock()
	if err := s.stopSandbox(ctx, b); err != nil {
		return nil, fmt.Errorf("stop sandbox %s: %w", b.ID, err)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox needs b.op write-locked.
func (s *Server) stopSandbox(ctx context.Context, b *sandbox.Sandbox) (err error) {
	ctx, span := trace.Start(ctx, "cri: stop sandbox")
	defer func() { _ = trace.End(span, err) }()
	if err := s.eachContainer(b, func(c *container.Container) error { return c.Stop(ctx, 0) }); err != nil {
		return err
	}
	was := b.Stopped()
	if err := b.Release(ctx); err != nil {
		return err
	}
	if was {
		return nil
	}
	if err := b.NoteStop(); err != nil {
		return err
	}
	failpoint.At("sandbox-stopped")
	s.emit(b.ID, b, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return nil
}

// eachContainer calls do for all containers of a sandbox in parallel.
func (s *Server) eachContainer(b *sandbox.Sandbox, do func(*container.Container) error) error {
	cs := s.containersOf(b.ID)
	errs := make(chan error, len(cs))
	for _, c := range cs {
		go func() { errs <- do(c) }()
	}
	var all []error
	for range cs {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
