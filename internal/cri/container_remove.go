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
	"wherry.dev/internal/safepath"
	"wherry.dev/internal/trace"
)

// RemoveContainer removes a container, killing it if it runs. It can be repeated; a container
// that does not exist counts as removed. The log stays: it belongs to the kubelet.
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
	if err := s.killBundle(c.bundle, c.current().PID == 0); err != nil {
		return err
	}
	if err := s.releaseContainer(ctx, c); err != nil {
		return err
	}
	failpoint("remove-released")
	if err := os.Remove(c.bundle.ExitFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	failpoint("remove-exit")
	if ok, err := mount.Mounted(c.rootfs()); err != nil || ok {
		return errors.Join(fmt.Errorf("%s is still mounted", c.rootfs()), err)
	}
	if err := safepath.RemoveAll(c.bundle.Dir); err != nil {
		return err
	}
	failpoint("remove-bundle")
	s.images.Release(c.id)
	return safepath.RemoveAll(c.root)
}

// killBundle kills the processes of a bundle, conmon first. halfMade marks a container whose
// creation was cut off by a crash: conmon may be about to create it, and its PID may not have
// been written yet.
func (s *Server) killBundle(b oci.Bundle, halfMade bool) error {
	if pid, err := oci.ReadPID(b.MonitorPIDFile()); err == nil {
		if _, err := killMonitor(pid, b.ID); err != nil {
			return err
		}
	}
	if halfMade {
		if err := s.killMakers(b.ID); err != nil {
			return err
		}
	}
	if !cgroup.Exists(b.Cgroup) {
		return nil
	}
	return cgroup.Kill(b.Cgroup)
}

// killMakers kills every conmon and runtime that works on a container. They all start in the
// monitor cgroup; what they start may have moved to the container's.
func (s *Server) killMakers(id string) error {
	for {
		pids, err := cgroup.Procs(s.cfg.monitorCgroup())
		if err != nil {
			return err
		}
		found := false
		for _, pid := range pids {
			killed, err := killMonitor(pid, id)
			if err != nil {
				return err
			}
			found = found || killed
		}
		if !found {
			return nil
		}
	}
}

// killMonitor kills the process if its command line names the container, and waits until it is
// gone.
func killMonitor(pid int, id string) (bool, error) {
	p, err := openMonitor(pid, id)
	if err != nil || p == nil {
		return false, err
	}
	defer func() { _ = p.close() }()
	if err := p.signal(unix.SIGKILL); err != nil {
		return false, err
	}
	return true, p.wait()
}
