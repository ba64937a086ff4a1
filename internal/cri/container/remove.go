package container

import (
	"context"
	"errors"
	"fmt"
	"os"

	"wherry.dev/internal/cri/monitor"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/safepath"
	"wherry.dev/internal/trace"
)

// Remove stops it and removes every trace of it. It calls gone once, when nothing is left.
func (c *Container) Remove(ctx context.Context, gone func()) (err error) {
	ctx, span := trace.Start(ctx, "cri: remove container")
	defer func() { _ = trace.End(span, err) }()
	c.op.Lock()
	defer c.op.Unlock()
	if c.removed {
		return nil
	}
	if err := c.Stop(ctx, 0); err != nil {
		return err
	}
	select {
	case <-c.cleaned:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.Clear(ctx); err != nil {
		return err
	}
	gone()
	c.removed = true
	return nil
}

// Clear removes every trace of it, whatever state a failure or a
// crash left it in. The record goes last.
func (c *Container) Clear(ctx context.Context) error {
	if err := monitor.KillBundle(c.env.Monitors, c.bundle, c.current().PID == 0); err != nil {
		return err
	}
	if err := c.release(ctx); err != nil {
		return err
	}
	failpoint.At("remove-released")
	if err := os.Remove(c.bundle.ExitFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	failpoint.At("remove-exit")
	if ok, err := mount.Mounted(c.rootfs()); err != nil || ok {
		return errors.Join(fmt.Errorf("%s is still mounted", c.rootfs()), err)
	}
	if err := safepath.RemoveAll(c.bundle.Dir); err != nil {
		return err
	}
	failpoint.At("remove-bundle")
	c.env.Images.Release(c.ID)
	return safepath.RemoveAll(c.root)
}
