package container

import (
	"context"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"wherry.dev/internal/cri/confine"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/rootfs"
	"wherry.dev/internal/cri/sandbox"
	"wherry.dev/internal/oci"
	"wherry.dev/internal/trace"
)

// spec generates the container's spec and adds what depends on the machine: CDI devices,
// the compiled seccomp profile, the working directory.
func (c *Container) spec(ctx context.Context, b *sandbox.Sandbox) (spec *specs.Spec, err error) {
	_, span := trace.Start(ctx, "cri: spec")
	defer func() { _ = trace.End(span, err) }()
	in, err := c.specInput(b)
	if err != nil {
		return nil, err
	}
	profile, err := confine.ReadProfile(c.Config().GetLinux().GetSecurityContext())
	if err != nil {
		return nil, err
	}
	spec, err = oci.Spec(in)
	if err != nil {
		return nil, crierror.Invalid("%w", err)
	}
	if err := dropHugePages(c.runtime, spec.Linux.Resources); err != nil {
		return nil, err
	}
	if err := confine.InjectCDI(c.env.CDISpecDirs, spec, c.Config()); err != nil {
		return nil, err
	}
	if err := c.env.Seccomp.Apply(c.runtime, spec, profile); err != nil {
		return nil, err
	}
	return spec, rootfs.EnsureDir(c.rootfs(), spec.Process.Cwd, b.Owner())
}

// specInput gathers what the spec depends on.
func (c *Container) specInput(b *sandbox.Sandbox) (in oci.Input, err error) {
	cfg := c.Config()
	sec := cfg.GetLinux().GetSecurityContext()
	in = oci.Input{
		Host: c.env.Host, Config: cfg, Image: c.rec.Image, Rootfs: c.rootfs(), Cgroup: c.rec.Cgroup,
		Sandbox: b.Shared(), Target: c.target,
	}
	if in.User, err = oci.ResolveUser(sec, c.rec.Image.User, c.rootfs()); err != nil {
		return in, err
	}
	if in.Mounts, err = c.resolveMounts(b); err != nil {
		return in, err
	}
	if in.Ulimits, err = c.env.Ulimits.For(b.Config, cfg); err != nil {
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
	if in.Sandbox.EtcLocked, err = b.LockedOptions(b.SharedDir()); err != nil {
		return in, err
	}
	in.AppArmor, err = confine.AppArmor(sec)
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
			return crierror.Precondition("huge pages of %s: %s needs the hugetlb cgroup controller, which this machine lacks", l.Pagesize, r.Name)
		}
	}
	limits.HugepageLimits = nil
	return nil
}
