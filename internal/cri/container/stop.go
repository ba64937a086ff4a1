package container

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cri/monitor"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// Stop sends the stop signal and, after the grace period, SIGKILL. It returns once it has exited.
func (c *Container) Stop(ctx context.Context, grace time.Duration) (err error) {
	if c.Ended() {
		return nil
	}
	ctx, span := trace.Start(ctx, "cri: stop container")
	defer func() { _ = trace.End(span, err) }()
	if grace > 0 && c.Running() {
		left, err := c.askToStop(time.Now(), grace)
		if err != nil {
			return err
		}
		failpoint.At("stop-signalled")
		done, err := c.waitExited(ctx, left)
		if err != nil || done {
			return err
		}
	}
	failpoint.At("stop-kill")
	if c.current().Refused != "" {
		c.giveUp()
	}
	if err := c.signal(unix.SIGKILL); err != nil {
		return err
	}
	failpoint.At("stop-killed")
	// A process that survives SIGKILL hangs in the kernel; the caller's deadline, or this one,
	// reports that.
	done, err := c.waitExited(ctx, 2*time.Minute)
	if err == nil && !done {
		err = fmt.Errorf("process %d is still running after SIGKILL; it may hang on a disk or a network file system", c.current().PID)
	}
	return err
}

// askToStop sends the stop signal and returns how long to wait for the exit. A later call joins a
// grace period that is still running instead of sending the signal again: many programs take a
// second signal to mean that they should drop everything at once. The shortest time counts.
func (c *Container) askToStop(now time.Time, grace time.Duration) (time.Duration, error) {
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

// Ended reports whether it has exited and its status says so.
func (c *Container) Ended() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

func (c *Container) waitExited(ctx context.Context, wait time.Duration) (bool, error) {
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
func (c *Container) signal(sig unix.Signal) error {
	st := c.current()
	p, err := monitor.Open(st.PID, st.PIDStart)
	if err != nil || p == nil {
		return err
	}
	defer func() { _ = p.Close() }()
	return p.Signal(sig)
}
