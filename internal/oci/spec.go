// Package oci turns CRI's container configuration into an OCI runtime-spec and drives what runs
// the container: crun or runc, under conmon.
//
// Spec and what it calls are pure: everything that they need to know about the machine, the image
// and the sandbox is passed in as values.
package oci

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
)

// Version is the lowest runtime-spec version that covers what we write; crun 1.8 refuses anything
// above 1.0.
const Version = "1.0.2"

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Host is what the spec needs to know about the machine.
type Host struct {
	Capabilities []string // that this process may grant, as CAP_ names
	OOMScoreMin  int      // lowest oom_score_adj that can be set
	Devices      []Device // of /dev, for privileged containers
	RaisesLimits bool     // this process may raise resource limits above its own
	CgroupV2     bool
	// RecursiveReadOnly means that the kernel can make whole trees of mounts read-only (Linux 5.12).
	RecursiveReadOnly bool
}

// Sandbox is what the containers of a pod share.
type Sandbox struct {
	Hostname   string
	Namespaces map[specs.LinuxNamespaceType]string // pinned ones: type to path
	IDMapping  []specs.LinuxIDMapping              // of users and groups in its user namespace, if it has one
	Shm        string                              // directory that becomes /dev/shm
	Etc        map[string]string                   // container path → host file: hosts, hostname, resolv.conf
	EtcLocked  []string                            // like ResolvedMount.Locked, for the files in Etc
}

// Input is everything that decides a container's spec.
type Input struct {
	Host    Host
	Sandbox Sandbox
	Config  *runtimeapi.ContainerConfig
	Image   ocispec.ImageConfig
	User    specs.User
	Rootfs  string // path, on the host
	Cgroup  string // path relative to the hierarchies' roots
	Target  string // PID namespace for NamespaceMode_TARGET
	Mounts  []ResolvedMount
	Devices []Device // of Config.Devices, looked up on the host
	Ulimits []specs.POSIXRlimit
	// AppArmor names a profile that is loaded into the kernel; "" means none.
	AppArmor string
}

// Spec generates the runtime-spec of a container.
func Spec(in Input) (*specs.Spec, error) {
	sec := in.security()
	process, err := in.process()
	if err != nil {
		return nil, err
	}
	namespaces, err := in.namespaces()
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version: Version,
		Root:    &specs.Root{Path: in.Rootfs, Readonly: sec.GetReadonlyRootfs()},
		Process: process,
		Mounts:  in.mounts(),
		Linux: &specs.Linux{
			Namespaces:        namespaces,
			CgroupsPath:       in.Cgroup,
			RootfsPropagation: rootfsPropagation(in.Mounts),
			Resources:         in.resources(),
			Devices:           in.nodes(),
			UIDMappings:       in.Sandbox.IDMapping,
			GIDMappings:       in.Sandbox.IDMapping,
		},
	}
	if !sec.GetPrivileged() {
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = hiddenPaths(sec)
	}
	return s, nil
}

func (in Input) security() *runtimeapi.LinuxContainerSecurityContext {
	return in.Config.GetLinux().GetSecurityContext()
}

func (in Input) process() (*specs.Process, error) {
	args, err := Command(in.Config, in.Image)
	if err != nil {
		return nil, err
	}
	sec := in.security()
	caps, err := Capabilities(sec, in.Host.Capabilities)
	if err != nil {
		return nil, err
	}
	oom := max(int(in.Config.GetLinux().GetResources().GetOomScoreAdj()), in.Host.OOMScoreMin)
	return &specs.Process{
		Terminal:        in.Config.GetTty(),
		User:            in.User,
		Args:            args,
		Env:             Environment(in.Config, in.Image, in.Sandbox.Hostname),
		Cwd:             workingDir(in.Config, in.Image),
		Capabilities:    caps,
		NoNewPrivileges: sec.GetNoNewPrivs(),
		OOMScoreAdj:     &oom,
		Rlimits:         in.Ulimits,
		ApparmorProfile: in.AppArmor,
	}, nil
}

// Command follows Docker's rule: the pod's command replaces the image's entrypoint, and then the
// image's cmd no longer counts.
func Command(c *runtimeapi.ContainerConfig, img ocispec.ImageConfig) ([]string, error) {
	command, args := c.GetCommand(), c.GetArgs()
	if len(command) == 0 {
		if len(args) == 0 {
			args = img.Cmd
		}
		if len(img.Entrypoint) != 1 || img.Entrypoint[0] != "" {
			command = img.Entrypoint
		}
	}
	all := slices.Concat(command, args)
	if len(all) == 0 {
		return nil, errors.New("no command specified: neither the container nor its image has one")
	}
	return all, nil
}

func workingDir(c *runtimeapi.ContainerConfig, img ocispec.ImageConfig) string {
	for _, d := range []string{c.GetWorkingDir(), img.WorkingDir} {
		if d != "" {
			return filepath.Clean("/" + d)
		}
	}
	return "/"
}

// Environment merges the image's variables with the container's, which take precedence.
func Environment(c *runtimeapi.ContainerConfig, img ocispec.ImageConfig, hostname string) []string {
	env := []string{defaultPath}
	if hostname != "" {
		env = append(env, "HOSTNAME="+hostname)
	}
	if c.GetTty() {
		env = append(env, "TERM=xterm")
	}
	env = append(env, img.Env...)
	for _, kv := range c.GetEnvs() {
		env = append(env, kv.GetKey()+"="+string(kv.GetValue()))
	}
	return lastWins(env)
}

// lastWins keeps the last setting of each variable, at the position of the first.
func lastWins(env []string) []string {
	at := map[string]int{}
	out := env[:0:0]
	for _, e := range env {
		key, _, _ := strings.Cut(e, "=")
		if i, ok := at[key]; ok {
			out[i] = e
			continue
		}
		at[key] = len(out)
		out = append(out, e)
	}
	return out
}

// namespaces lists the container's namespaces: new ones, and ones joined by path. A namespace
// that is left out is the host's.
func (in Input) namespaces() ([]specs.LinuxNamespace, error) {
	opts := in.security().GetNamespaceOptions()
	ns := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if in.Host.CgroupV2 && !in.security().GetPrivileged() {
		ns = append(ns, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	for _, t := range slices.Sorted(maps.Keys(in.Sandbox.Namespaces)) {
		if t == specs.PIDNamespace {
			continue
		}
		ns = append(ns, specs.LinuxNamespace{Type: t, Path: in.Sandbox.Namespaces[t]})
	}
	switch opts.GetPid() {
	case runtimeapi.NamespaceMode_CONTAINER:
		ns = append(ns, specs.LinuxNamespace{Type: specs.PIDNamespace})
	case runtimeapi.NamespaceMode_POD:
		path := in.Sandbox.Namespaces[specs.PIDNamespace]
		if path == "" {
			return nil, errors.New("the sandbox has no PID namespace to share; request one when it is created")
		}
		ns = append(ns, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: path})
	case runtimeapi.NamespaceMode_TARGET:
		ns = append(ns, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: in.Target})
	case runtimeapi.NamespaceMode_NODE:
	}
	return ns, nil
}

// resources returns the container's limits and its devices. The kubelet sets the node's PID limit
// on the pod's cgroup.
func (in Input) resources() *specs.LinuxResources {
	r := Resources(in.Config.GetLinux().GetResources())
	r.Devices = deviceRules(in.security().GetPrivileged(), in.devices())
	if in.Host.CgroupV2 && r.CPU != nil && r.CPU.Shares != nil && r.Unified["cpu.weight"] == "" {
		// Older runtimes convert CPU shares by another curve than the pod's cgroup and later
		// updates.
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified["cpu.weight"] = strconv.FormatUint(cgroup.Weight(*r.CPU.Shares), 10)
	}
	return r
}

// Resources translates CRI's limits. The result only has what is set.
func Resources(c *runtimeapi.LinuxContainerResources) *specs.LinuxResources {
	r := &specs.LinuxResources{Unified: maps.Clone(c.GetUnified())}
	cpu := specs.LinuxCPU{Cpus: c.GetCpusetCpus(), Mems: c.GetCpusetMems()}
	if v := c.GetCpuShares(); v > 0 {
		u := uint64(v)
		cpu.Shares = &u
	}
	if v := c.GetCpuQuota(); v != 0 {
		cpu.Quota = &v
	}
	if v := c.GetCpuPeriod(); v > 0 {
		u := uint64(v)
		cpu.Period = &u
	}
	if cpu != (specs.LinuxCPU{}) {
		r.CPU = &cpu
	}
	var mem specs.LinuxMemory
	if v := c.GetMemoryLimitInBytes(); v != 0 {
		mem.Limit = &v
	}
	if v := c.GetMemorySwapLimitInBytes(); v != 0 {
		mem.Swap = &v
	}
	if mem != (specs.LinuxMemory{}) {
		r.Memory = &mem
	}
	for _, h := range c.GetHugepageLimits() {
		r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return r
}

var defaultMasked = []string{
	"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
	"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
	"/sys/devices/virtual/powercap",
}

var defaultReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// hiddenPaths returns the paths that the container may not see or write. If the client names
// none, they are the usual ones, unless the container has a user namespace, where an unmasked
// /proc (ProcMount) is a legitimate request: over gRPC, nil and empty look alike.
func hiddenPaths(sec *runtimeapi.LinuxContainerSecurityContext) (masked, readonly []string) {
	masked, readonly = sec.GetMaskedPaths(), sec.GetReadonlyPaths()
	pod := sec.GetNamespaceOptions().GetUsernsOptions().GetMode() == runtimeapi.NamespaceMode_POD &&
		sec.GetNamespaceOptions().GetUsernsOptions() != nil
	if len(masked) == 0 && len(readonly) == 0 && !pod {
		return defaultMasked, defaultReadonly
	}
	return masked, readonly
}

// StopSignal returns the signal that asks the container to stop: the pod's, else the image's,
// else SIGTERM.
func StopSignal(c *runtimeapi.ContainerConfig, img ocispec.ImageConfig) (string, error) {
	if s := c.GetStopSignal(); s != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		name := strings.TrimPrefix(s.String(), "SIGNAL_")
		if _, err := ParseSignal(name); err != nil {
			return "", err
		}
		return name, nil
	}
	if img.StopSignal == "" {
		return "SIGTERM", nil
	}
	n, err := ParseSignal(img.StopSignal)
	if err != nil {
		return "", fmt.Errorf("stop signal of the image: %w", err)
	}
	return SignalName(n), nil
}
