package cri

import (
	"context"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// containerSpec generates the container's spec and adds what depends on the machine: CDI devices,
// the compiled seccomp profile, the working directory.
func (s *Server) containerSpec(ctx context.Context, b *sandbox, c *container) (spec *specs.Spec, err error) {
	_, span := trace.Start(ctx, "cri: spec")
	defer func() { _ = trace.End(span, err) }()
	in, err := s.specInput(b, c)
	if err != nil {
		return nil, err
	}
	profile, err := readProfile(c.config().GetLinux().GetSecurityContext())
	if err != nil {
		return nil, err
	}
	spec, err = oci.Spec(in)
	if err != nil {
		return nil, invalid("%w", err)
	}
	if err := dropHugePages(c.runtime, spec.Linux.Resources); err != nil {
		return nil, err
	}
	if err := s.injectCDI(spec, c.config()); err != nil {
		return nil, err
	}
	if err := s.seccomp.apply(c.runtime, spec, profile); err != nil {
		return nil, err
	}
	return spec, ensureDir(c.rootfs(), spec.Process.Cwd, b.owner())
}

// specInput gathers what the spec depends on.
func (s *Server) specInput(b *sandbox, c *container) (in oci.Input, err error) {
	cfg := c.config()
	sec := cfg.GetLinux().GetSecurityContext()
	in = oci.Input{
		Host: s.host, Config: cfg, Image: c.rec.Image, Rootfs: c.rootfs(), Cgroup: c.rec.Cgroup,
		Sandbox: b.shared(),
	}
	if in.User, err = oci.ResolveUser(sec, c.rec.Image.User, c.rootfs()); err != nil {
		return in, err
	}
	if in.Mounts, err = s.resolveMounts(b, c); err != nil {
		return in, err
	}
	if in.Ulimits, err = s.ulimits(b, cfg); err != nil {
		return in, err
	}
	if in.Devices, err = oci.LookupDevices(cfg.GetDevices()); err != nil {
		return in, err
	}
	if sec.GetPrivileged() {
		if in.Host.Devices, err = oci.HostDevices(); err != nil {
			return in, err
		}
	}
	if sec.GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_TARGET {
		if in.Target, err = s.targetPIDNamespace(b, sec.GetNamespaceOptions().GetTargetId()); err != nil {
			return in, err
		}
	}
	if in.Sandbox.EtcLocked, err = b.lockedOptions(b.sharedDir()); err != nil {
		return in, err
	}
	in.AppArmor, err = appArmor(sec)
	return in, err
}

// dropHugePages removes limits of zero if the controller is missing: the kubelet always sets
// them, and there is nothing to limit.
func dropHugePages(r *oci.Runtime, limits *specs.LinuxResources) error {
	if r.LimitsHugePages() {
		return nil
	}
	for _, l := range limits.HugepageLimits {
		if l.Limit > 0 {
			return precondition("huge pages of %s: %s finds no hugetlb cgroup controller on this machine", l.Pagesize, r.Name)
		}
	}
	limits.HugepageLimits = nil
	return nil
}

// shared returns what the sandbox's containers get from it.
func (b *sandbox) shared() oci.Sandbox {
	o := b.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	sh := oci.Sandbox{
		Namespaces: b.namespaces(),
		Shm:        b.shmDir(),
		Etc:        map[string]string{},
	}
	if u := b.usernsOptions(); u != nil {
		sh.IDMapping = specMapping(u.GetUids()) // groups use the same mapping
	}
	if h, err := b.hostname(); err == nil {
		sh.Hostname = h
	}
	if o.GetIpc() == runtimeapi.NamespaceMode_NODE {
		sh.Shm = "/dev/shm"
	}
	for _, f := range []string{"hosts", "hostname", "resolv.conf"} {
		sh.Etc["/etc/"+f] = b.etcFile(f)
	}
	return sh
}

// targetPIDNamespace returns the PID namespace of the container that a debug container targets.
func (s *Server) targetPIDNamespace(b *sandbox, id string) (string, error) {
	c, err := s.findContainer(id)
	if err != nil {
		return "", fmt.Errorf("target of the PID namespace: %w", err)
	}
	if c.rec.SandboxID != b.id {
		return "", invalid("target container %s is in another pod", id)
	}
	if !c.running() {
		return "", precondition("target container %s does not run", id)
	}
	return fmt.Sprintf("/proc/%d/ns/pid", c.current().PID), nil
}
