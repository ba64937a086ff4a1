package cri

import (
	"context"
	"errors"
	"fmt"
	"os"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// RemoveContainer removes a container, killing it if it runs. It can be repeated; a
// container that is not there is removed. The log stays: it is the kubelet's.
func (s *Server) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if isNotFound(err) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, s.uidOf(c))
	if err := s.removeContainer(ctx, c); err != nil {
		return nil, fmt.Errorf("remove container %s: %w", c.id, err)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (s *Server) removeContainer(ctx context.Context, c *container) (err error) {
	ctx, span := trace.Start(ctx, "cri: remove container")
	defer func() { _ = trace.End(span, err) }()
	c.op.Lock()
	defer c.op.Unlock()
	if c.removed {
		return nil
	}
	if err := s.stopContainer(ctx, c, 0); err != nil {
		return err
	}
	select {
	case <-c.cleaned:
	case <-ctx.Done():
		return ctx.Err()
	}
	b := s.sandboxOf(c)
	if err := s.clearContainer(ctx, c); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.containers, c.id)
	s.mu.Unlock()
	c.removed = true
	if b != nil {
		s.emit(c.id, b, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}

// clearContainer removes every trace of a container, whatever state a failure or a
// crash left it in. The record goes last.
func (s *Server) clearContainer(ctx context.Context, c *container) error {
	if err := killBundle(c.bundle); err != nil {
		return err
	}
	if err := s.releaseContainer(ctx, c); err != nil {
		return err
	}
	failpoint("remove-released")
	if err := os.Remove(c.bundle.ExitFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if ok, err := mount.Mounted(c.rootfs()); err != nil || ok {
		return errors.Join(fmt.Errorf("%s is still mounted", c.rootfs()), err)
	}
	if err := os.RemoveAll(c.bundle.Dir); err != nil {
		return err
	}
	s.images.Release(c.id)
	return os.RemoveAll(c.root)
}

// killBundle ends the processes of a bundle, conmon first: also one that a call that
// was killed has left half-made.
func killBundle(b oci.Bundle) error {
	if pid, err := oci.ReadPID(b.MonitorPIDFile()); err == nil {
		p, err := openMonitor(pid, b.ID)
		if err != nil {
			return err
		}
		if p != nil {
			defer func() { _ = p.close() }()
			if err := p.signal(unix.SIGKILL); err != nil {
				return err
			}
			if err := p.wait(); err != nil {
				return err
			}
		}
	}
	if !cgroup.Exists(b.Cgroup) {
		return nil
	}
	return cgroup.Kill(b.Cgroup)
}
