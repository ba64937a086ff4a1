package sandbox

import (
	"context"
	"errors"
	"path/filepath"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/safepath"
	"wherry.dev/internal/trace"
)

// Release releases what the sandbox holds of the machine. The address is marked as
// released before the namespace goes, and becomes free once the veth is gone.
func (b *Sandbox) Release(ctx context.Context) (err error) {
	ctx, span := trace.Start(ctx, "cri: release sandbox")
	defer func() { _ = trace.End(span, err) }()
	if err := b.stopInit(ctx); err != nil {
		return err
	}
	failpoint.At("release-init")
	if b.Networks {
		network := ""
		if at := b.current().Network; at != nil {
			network = at.Network
		}
		if err := b.env.Network.Teardown(ctx, b.Pod(), network); err != nil {
			return err
		}
		failpoint.At("release-network")
	}
	if err := netns.Remove(b.nsDir()); err != nil {
		return err
	}
	failpoint.At("release-namespaces")
	return b.unmountShare()
}

// unmountShare unmounts the shared folder, and what older versions of Wherry mounted.
func (b *Sandbox) unmountShare() error {
	return errors.Join(mount.Unmount(b.shareDir()), mount.Unmount(filepath.Join(b.state, "shm")))
}

// Clear removes every trace of a sandbox that has no containers, or none any more.
func (b *Sandbox) Clear(ctx context.Context) error {
	if err := b.Release(ctx); err != nil {
		return err
	}
	failpoint.At("clear-released")
	if b.rec.OwnCgroup {
		if err := cgroup.Remove(b.CgroupParent()); err != nil {
			return err
		}
	}
	if err := safepath.RemoveAll(b.state); err != nil {
		// A crash left something mounted: unmount what is there, then try again.
		if err := mount.RemoveTree(b.state); err != nil {
			return err
		}
	}
	failpoint.At("clear-state")
	return safepath.RemoveAll(b.root)
}
