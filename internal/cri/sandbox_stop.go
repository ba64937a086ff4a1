package cri

import (
	"context"
	"errors"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/safepath"
	"wherry.dev/internal/trace"
)

// StopPodSandbox kills the containers of a sandbox and releases its network. It can be repeated;
// a sandbox that does not exist counts as stopped.
func (s *Server) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	b, err := s.findSandbox(req.GetPodSandboxId())
	if isNotFound(err) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, b.uid())
	b.op.Lock()
	defer b.op.Unlock()
	if err := s.stopSandbox(ctx, b); err != nil {
		return nil, fmt.Errorf("stop sandbox %s: %w", b.id, err)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox needs b.op write-locked.
func (s *Server) stopSandbox(ctx context.Context, b *sandbox) (err error) {
	ctx, span := trace.Start(ctx, "cri: stop sandbox")
	defer func() { _ = trace.End(span, err) }()
	if err := s.eachContainer(b, func(c *container) error { return s.stopContainer(ctx, c, 0) }); err != nil {
		return err
	}
	was := b.current().Phase
	if err := s.releaseSandbox(ctx, b); err != nil {
		return err
	}
	if was == phaseStopped {
		return nil
	}
	if err := b.update(func(st *sandboxStatus) { st.Phase = phaseStopped }); err != nil {
		return err
	}
	failpoint("sandbox-stopped")
	s.emit(b.id, b, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return nil
}

// eachContainer calls do for all containers of a sandbox in parallel.
func (s *Server) eachContainer(b *sandbox, do func(*container) error) error {
	cs := s.containersOf(b.id)
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

func (s *Server) containersOf(sandboxID string) []*container {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var cs []*container
	for _, c := range s.containers {
		if c.rec.SandboxID == sandboxID {
			cs = append(cs, c)
		}
	}
	return cs
}

// releaseSandbox releases what the sandbox holds of the machine. The address is marked as
// released before the namespace goes, and becomes free once the veth is gone.
func (s *Server) releaseSandbox(ctx context.Context, b *sandbox) (err error) {
	ctx, span := trace.Start(ctx, "cri: release sandbox")
	defer func() { _ = trace.End(span, err) }()
	if err := s.stopInit(ctx, b); err != nil {
		return err
	}
	failpoint("release-init")
	if b.networks {
		network := ""
		if at := b.current().Network; at != nil {
			network = at.Network
		}
		if err := s.network.Teardown(ctx, b.pod(), network); err != nil {
			return err
		}
		failpoint("release-network")
	}
	if err := netns.Remove(b.nsDir()); err != nil {
		return err
	}
	failpoint("release-namespaces")
	return b.unmountShare()
}

// clearSandbox removes every trace of a sandbox that has no containers, or none any more.
func (s *Server) clearSandbox(ctx context.Context, b *sandbox) error {
	if err := s.releaseSandbox(ctx, b); err != nil {
		return err
	}
	failpoint("clear-released")
	if b.rec.OwnCgroup {
		if err := cgroup.Remove(s.cgroupParent(b)); err != nil {
			return err
		}
	}
	if err := safepath.RemoveAll(b.state); err != nil {
		// A crash left something mounted: unmount what is there, then try again.
		if err := mount.RemoveTree(b.state); err != nil {
			return err
		}
	}
	failpoint("clear-state")
	return safepath.RemoveAll(b.root)
}

// RemovePodSandbox removes a sandbox and what is left of its containers. It can be repeated; a
// sandbox that does not exist counts as removed.
func (s *Server) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	b, err := s.findSandbox(req.GetPodSandboxId())
	if isNotFound(err) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, b.uid())
	b.op.Lock()
	defer b.op.Unlock()
	if err := s.removeSandbox(ctx, b); err != nil {
		return nil, fmt.Errorf("remove sandbox %s: %w", b.id, err)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// removeSandbox needs b.op write-locked.
func (s *Server) removeSandbox(ctx context.Context, b *sandbox) (err error) {
	ctx, span := trace.Start(ctx, "cri: remove sandbox")
	defer func() { _ = trace.End(span, err) }()
	s.mu.RLock()
	_, there := s.sandboxes[b.id]
	s.mu.RUnlock()
	if !there {
		return nil // another call removed it while this one waited
	}
	if err := s.stopSandbox(ctx, b); err != nil {
		return err
	}
	if err := s.eachContainer(b, func(c *container) error { return s.removeContainer(ctx, c) }); err != nil {
		return err
	}
	if err := s.clearSandbox(ctx, b); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.sandboxes, b.id)
	s.mu.Unlock()
	s.emit(b.id, b, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}

// cgroupParent returns the cgroup in which the sandbox's containers get theirs.
func (s *Server) cgroupParent(b *sandbox) string {
	if p := b.config.GetLinux().GetCgroupParent(); p != "" {
		return p
	}
	return s.cfg.cgroupRoot() + "/" + b.id
}
