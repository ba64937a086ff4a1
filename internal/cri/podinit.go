package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// nobody is the user of a pod's init. With the pod's own user, containers could
// reach the init's root through /proc.
const nobody = 65534

// initBundle returns the bundle of the pod's init, which is a container to the OCI runtime.
func (s *Server) initBundle(b *sandbox) oci.Bundle {
	return oci.Bundle{
		ID: b.id + "-init", Dir: filepath.Join(b.state, "init"), ExitDir: s.cfg.exitDir(),
		Cgroup: filepath.Join(s.cgroupParent(b), b.id+"-init"),
	}
}

func (b *sandbox) pidnsPath() string { return filepath.Join(b.nsDir(), "pid") }

// startInit starts the process that holds the PID namespace, and pins the namespace.
func (s *Server) startInit(ctx context.Context, b *sandbox) (err error) {
	ctx, span := trace.Start(ctx, "cri: pod init")
	defer func() { _ = trace.End(span, err) }()
	r, err := s.handler(b.rec.Handler)
	if err != nil {
		return err
	}
	bundle := s.initBundle(b)
	rootfs := filepath.Join(bundle.Dir, "rootfs")
	program, err := initProgram()
	if err != nil {
		return err
	}
	if err := writeProgram(filepath.Join(rootfs, "init"), program); err != nil {
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
func (b *sandbox) pinPID(pid int) error {
	if err := writeFile(b.pidnsPath(), nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/pid", pid), b.pidnsPath(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin the PID namespace: %w", err)
	}
	return nil
}

// initSpec confines the init: no capabilities, an empty read-only root, the pod's
// namespaces.
func (b *sandbox) initSpec(rootfs, group string) *specs.Spec {
	ns := []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}
	for t, path := range b.namespaces() {
		if t != specs.PIDNamespace {
			ns = append(ns, specs.LinuxNamespace{Type: t, Path: path})
		}
	}
	user, mapping := uint32(nobody), []specs.LinuxIDMapping(nil)
	if u := b.usernsOptions(); u != nil {
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

// watchInit marks the sandbox as stopped when its init dies: the kernel has then killed the
// containers in its PID namespace, too.
func (s *Server) watchInit(b *sandbox) error {
	pid, err := oci.ReadPID(s.initBundle(b).MonitorPIDFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var monitor *process
	if err == nil {
		if monitor, err = openMonitor(pid, s.initBundle(b).ID); err != nil {
			return err
		}
	}
	s.work.Go(func() {
		if monitor != nil && !s.waitFor(monitor) {
			return
		}
		b.op.Lock()
		defer b.op.Unlock()
		if !b.ready() {
			return // stopped on purpose
		}
		if err := b.update(func(st *sandboxStatus) { st.Phase = phaseStopped }); err != nil {
			klog.ErrorS(err, "The init of a pod has died", "sandbox", b.id)
		}
		s.emit(b.id, b, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	})
	return nil
}

// stopInit kills the init and removes what it had. It can be repeated, and does nothing for pods
// that share no PID namespace.
func (s *Server) stopInit(ctx context.Context, b *sandbox) error {
	bundle := s.initBundle(b)
	if _, err := os.Stat(bundle.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	r, err := s.handlerOf(ctx, b.rec.Handler)
	if err != nil {
		return err
	}
	if err := s.killBundle(bundle, b.current().Phase == phaseMaking); err != nil {
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
