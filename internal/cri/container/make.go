package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/monitor"
	"wherry.dev/internal/cri/rootfs"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// Make carries out the steps of CreateContainer (see createContainer) but the last: it does not clear
// away what a failure leaves.
func (c *Container) Make(ctx context.Context, b *sandbox.Sandbox) error {
	if err := os.MkdirAll(c.root, 0o711); err != nil {
		return err
	}
	failpoint.At("container-folder")
	if err := disk.Save(c.recordPath(), c.rec); err != nil {
		return err
	}
	failpoint.At("container-recorded")
	if err := c.env.Images.Hold(c.rec.ImageID, c.ID); err != nil {
		return err
	}
	if err := c.mountRootfs(ctx, b); err != nil {
		return err
	}
	failpoint.At("container-rootfs")
	spec, err := c.spec(ctx, b)
	if err != nil {
		return err
	}
	if err := c.bundle.WriteSpec(spec); err != nil {
		return err
	}
	failpoint.At("container-spec")
	if c.runtime.OwnsCgroups() {
		if err := c.makeCgroup(ctx, spec.Linux.Resources); err != nil {
			return err
		}
	}
	failpoint.At("container-cgroup")
	if c.rec.Log != "" {
		if err := os.MkdirAll(filepath.Dir(c.rec.Log), 0o755); err != nil {
			return err
		}
		if err := checkLog(c.rec.Log); err != nil {
			return err
		}
	}
	err = c.ociCreate(ctx, spec.Process.User)
	if _, refused := errors.AsType[*oci.RefusedError](err); refused {
		err = c.update(func(st *State) { st.Refused, st.User = err.Error(), spec.Process.User })
	}
	if err != nil {
		return err
	}
	failpoint.At("container-status")
	return c.releaseVolumes()
}

func (c *Container) makeCgroup(ctx context.Context, r *specs.LinuxResources) (err error) {
	_, span := trace.Start(ctx, "cri: cgroup")
	defer func() { _ = trace.End(span, err) }()
	return cgroup.Ensure(c.rec.Cgroup, r)
}

// ociCreate has conmon and the runtime create the container, and records its process.
func (c *Container) ociCreate(ctx context.Context, user specs.User) (err error) {
	ctx, span := trace.Start(ctx, "oci: create")
	defer func() { _ = trace.End(span, err) }()
	pid, err := c.runtime.Create(ctx, c.bundle)
	if err != nil {
		return err
	}
	failpoint.At("container-created")
	start, err := monitor.StartTime(pid)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // it may be dead already: the watcher will see
		return err
	}
	return c.update(func(st *State) {
		st.PID, st.PIDStart, st.User = pid, start, user
		st.Resources.M = c.Config().GetLinux().GetResources()
	})
}

// mountRootfs mounts a writable layer on top of the image's.
func (c *Container) mountRootfs(ctx context.Context, b *sandbox.Sandbox) (err error) {
	_, span := trace.Start(ctx, "cri: rootfs")
	defer func() { _ = trace.End(span, err) }()
	layers, err := c.env.Images.Layers(c.rec.ImageID)
	if err != nil {
		return err
	}
	if err := os.Mkdir(c.bundle.Dir, 0o711); err != nil {
		return err
	}
	for dir, mode := range map[string]os.FileMode{c.upper(): 0o755, c.workdir(): 0o700, c.rootfs(): 0o755} {
		if err := os.Mkdir(dir, mode); err != nil {
			return err
		}
	}
	failpoint.At("container-folders")
	if err := os.Chown(c.upper(), b.Owner(), b.Owner()); err != nil { // it is the container's /
		return err
	}
	lowest, err := rootfs.Skeletons(c.env.Layout.Skeletons()).Layer(c.Config().GetMounts())
	if err != nil {
		return err
	}
	return b.Overlay(c.rootfs(), append(layers, lowest), c.upper(), c.workdir(), filepath.Join(c.volumeDir(), "rootfs"))
}

// checkLog refuses a log that conmon would write somewhere else: pods that collect logs have a
// hostPath to all of them, and may have put a link or a pipe there.
func checkLog(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode().IsRegular() {
		return nil
	}
	return errors.Join(err, crierror.Precondition("the container's log %s is not a regular file; remove it", path))
}
