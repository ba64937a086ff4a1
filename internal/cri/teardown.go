package cri

import (
	"context"
	"errors"
	"fmt"
	"os"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/mount"
)

// Teardown removes every sandbox and container of the instance, and then its network, cgroups and
// folders. It can be repeated. The server must not be used afterwards.
func (s *Server) Teardown(ctx context.Context) error {
	var errs []error
	for _, b := range s.allSandboxes() {
		b.Op.Lock()
		errs = append(errs, s.removeSandbox(ctx, b))
		b.Op.Unlock()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("tear down: %w", err)
	}
	cfg := s.cfg
	s.close()
	return cfg.wipe(ctx)
}

// TeardownVacant removes what an instance without sandboxes and containers leaves on the machine,
// and reports whether the instance was one. Unlike a server, it needs no space on the disk.
func (c Config) TeardownVacant(ctx context.Context) (bool, error) {
	for _, dir := range []string{c.layout().Sandboxes(), c.layout().Containers()} {
		left, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
			return false, err
		}
	}
	return true, c.withNetworkDefaults().wipe(ctx)
}

// ClearNames removes what bears the instance's name on the machine: processes and cgroups, links
// and rules. It needs no file of the instance, and removes none.
func (c Config) ClearNames(ctx context.Context) error {
	c = c.withNetworkDefaults()
	if err := errors.Join(cgroup.Kill(c.cgroupRoot()), cgroup.Remove(c.cgroupRoot())); err != nil {
		return fmt.Errorf("tear down cgroups: %w", err)
	}
	if err := c.network().Bridge.RemoveNames(ctx); err != nil {
		return fmt.Errorf("tear down the network: %w", err)
	}
	return nil
}

// wipe removes what an instance without pods leaves on the machine.
func (c Config) wipe(ctx context.Context) error {
	if err := c.network().Remove(ctx); err != nil {
		return fmt.Errorf("tear down the network: %w", err)
	}
	if err := errors.Join(cgroup.Kill(c.cgroupRoot()), cgroup.Remove(c.cgroupRoot())); err != nil {
		return fmt.Errorf("tear down cgroups: %w", err)
	}
	l := c.layout()
	for _, dir := range []string{l.SandboxState(), l.ContainerState(), l.Exits(), l.RuntimeState(""), c.network().Plugins.CacheDir,
		l.Sandboxes(), l.Containers(), l.Skeletons()} {
		if err := mount.RemoveTree(dir); err != nil {
			return err
		}
	}
	if c.Socket != "" {
		if err := os.Remove(c.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
