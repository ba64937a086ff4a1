package cri

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// StopContainer sends the stop signal and, after the timeout (in seconds), SIGKILL. It returns
// once the container has exited. It can be repeated, with a shorter timeout, too, while another
// call waits or after a caller gave up. A container that does not exist counts as stopped.
func (s *Server) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if isNotFound(err) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	ctx = trace.WithPod(ctx, s.uidOf(c))
	if err := s.stopContainer(ctx, c, time.Duration(req.GetTimeout())*time.Second); err != nil {
		return nil, fmt.Errorf("stop container %s: %w", c.id, err)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

func (s *Server) stopContainer(ctx context.Context, c *container, grace time.Duration) (err error) {
	if c.ended() {
		return nil
	}
	ctx, span := trace.Start(ctx, "cri: stop container")
	defer func() { _ = trace.End(span, err) }()
	if grace > 0 && c.running() {
		left, err := c.askToStop(time.Now(), grace)
		if err != nil {
			return err
		}
		failpoint("stop-signalled")
		done, err := c.waitExited(ctx, left)
		if err != nil || done {
			return err
		}
	}
	failpoint("stop-kill")
	if c.current().Refused != "" {
		c.giveUp()
	}
	if err := c.signal(unix.SIGKILL); err != nil {
		return err
	}
	failpoint("stop-killed")
	// A process that survives SIGKILL hangs in the kernel; the caller's deadline, or this one,
	// reports that.
	done, err := c.waitExited(ctx, 2*time.Minute)
	if err == nil && !done {
		err = fmt.Errorf("process %d has not ended even after SIGKILL; it may be waiting for a disk or a network file system", c.current().PID)
	}
	return err
}

// askToStop sends the stop signal and returns how long to wait for the exit. A later call joins a
// grace period that is still running instead of sending the signal again: many programs take a
// second signal to mean that they should drop everything at once. The shortest time counts.
func (c *container) askToStop(now time.Time, grace time.Duration) (time.Duration, error) {
	c.mu.Lock()
	joins := now.Before(c.killAt)
	if !joins || now.Add(grace).Before(c.killAt) {
		c.killAt = now.Add(grace)
	}
	left := c.killAt.Sub(now)
	c.mu.Unlock()
	if joins {
		return left, nil
	}
	sig, err := oci.ParseSignal(c.rec.StopSignal)
	if err != nil {
		return 0, err
	}
	return left, c.signal(sig)
}

func (c *container) ended() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

func (c *container) waitExited(ctx context.Context, wait time.Duration) (bool, error) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-c.exited:
		return true, nil
	case <-t.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// signal sends sig to the container's first process. It is no error if that has exited.
func (c *container) signal(sig unix.Signal) error {
	st := c.current()
	p, err := openStarted(st.PID, st.PIDStart)
	if err != nil || p == nil {
		return err
	}
	defer func() { _ = p.close() }()
	return p.signal(sig)
}
