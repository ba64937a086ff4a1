package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/cri/monitor"
	"wherry.dev/internal/cri/podinit"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// nobody is the user of a pod's init. With the pod's own user, containers could
// reach the init's root through /proc.
const nobody = 65534

// initBundle returns the bundle of the pod's init, which is a container to the OCI runtime.
func (b *Sandbox) initBundle() oci.Bundle {
	return oci.Bundle{
		ID: b.ID + "-init", Dir: filepath.Join(b.state, "init"), ExitDir: b.env.Layout.Exits(),
		Cgroup: filepath.Join(b.CgroupParent(), b.ID+"-init"),
	}
}

// startInit starts the process that holds the PID namespace, and pins the namespace.
func (b *Sandbox) startInit(ctx context.Context) (err error) {
	ctx, span := trace.Start(ctx, "cri: pod init")
	defer func() { _ = trace.End(span, err) }()
	r, err := b.env.Handlers.Get(b.rec.Handler)
	if err != nil {
		return err
	}
	bundle := b.initBundle()
	rootfs := filepath.Join(bundle.Dir, "rootfs")
	program, err := podinit.Program()
	if err != nil {
		return err
	}
	if err := disk.WriteProgram(filepath.Join(rootfs, "init"), program); err != nil {
		return err
	}
	for _, d := range []string{"proc", "dev"} {
		if err := os.Mkdir(filepath.Join(rootfs, d), 0o755); err != nil {
			return err
		}
	}
	spec := b.initSpec(rootfs, bundle.Cgroup)
	if err := bundle.WriteSpec(spec); err != nil {
		return err
	}
	if r.OwnsCgroups() {
		if err := cgroup.Ensure(bundle.Cgroup, spec.Linux.Resources); err != nil {
			return err
		}
	}
	pid, err := r.Create(ctx, bundle)
	if err != nil {
		return err
	}
	if err := r.Start(ctx, bundle); err != nil {
		return err
	}
	return b.pinPID(pid)
}

// pinPID pins the namespace: a path with a PID in it could name another process later.
func (b *Sandbox) pinPID(pid int) error {
	if err := disk.WriteFile(b.pidnsPath(), nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/pid", pid), b.pidnsPath(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin the PID namespace: %w", err)
	}
	return nil
}

// initSpec confines the init: no capabilities, an empty read-only root, the pod's
// namespaces.
func (b *Sandbox) initSpec(rootfs, group string) *specs.Spec {
	ns := []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}
	for t, path := range b.namespaces() {
		if t != specs.PIDNamespace {
			ns = append(ns, specs.LinuxNamespace{Type: t, Path: path})
		}
	}
	user, mapping := uint32(nobody), []specs.LinuxIDMapping(nil)
	if u := b.UsernsOptions(); u != nil {
		mapping = specMapping(u.GetUids())
		user = min(user, mapping[0].Size-1)
	}
	return &specs.Spec{
		Version: oci.Version,
		Root:    &specs.Root{Path: rootfs, Readonly: true},
		Process: &specs.Process{
			User: specs.User{UID: user, GID: user}, Args: []string{"/init"}, Cwd: "/",
			NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=64k"}},
		},
		Linux: &specs.Linux{Namespaces: ns, CgroupsPath: group, UIDMappings: mapping, GIDMappings: mapping, Resources: &specs.LinuxResources{
			Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}, {Allow: true, Type: "c", Access: "rwm"}},
		}},
	}
}

// InitMonitor opens the conmon of the pod's init. It returns nil if it has exited.
func (b *Sandbox) InitMonitor() (*monitor.Process, error) { return monitor.OfBundle(b.initBundle()) }

// InitPID returns the PID of the pod's init, or 0 in pods that share no PID namespace.
func (b *Sandbox) InitPID() int {
	if !b.Ready() || !b.current().PIDNS {
		return 0
	}
	pid, err := oci.ReadPID(b.initBundle().PIDFile())
	if err != nil {
		return 0 // it has just been stopped
	}
	return pid
}

// stopInit kills the init and removes what it had. It can be repeated, and does nothing for pods
// that share no PID namespace.
func (b *Sandbox) stopInit(ctx context.Context) error {
	bundle := b.initBundle()
	if _, err := os.Stat(bundle.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	r, err := b.env.Handlers.Former(ctx, b.rec.Handler)
	if err != nil {
		return err
	}
	if err := monitor.KillBundle(b.env.Monitors, bundle, b.HalfMade()); err != nil {
		return err
	}
	if err := errors.Join(netns.Unpin(b.pidnsPath()), r.Delete(ctx, bundle), cgroup.Remove(bundle.Cgroup)); err != nil {
		return err
	}
	if err := os.Remove(bundle.ExitFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return mount.RemoveTree(bundle.Dir)
}
