package oci

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ResolvedMount is a mount of the pod whose source exists, with its symbolic links resolved.
type ResolvedMount struct {
	*runtimeapi.Mount
	Source string
	Locked []string // options of the source's mount that a user namespace cannot remove
}

// mounts lists the mounts that every container has, then the sandbox's files, then the pod's
// mounts. A mount of the pod replaces one of ours at the same place.
func (in Input) mounts() []specs.Mount {
	own := map[string]bool{}
	for _, m := range in.Mounts {
		own[filepath.Clean(m.GetContainerPath())] = true
	}
	var all []specs.Mount
	for _, m := range slices.Concat(in.systemMounts(), in.deviceMounts(), in.sandboxMounts()) {
		if !own[m.Destination] {
			all = append(all, m)
		}
	}
	var pod []specs.Mount
	for _, m := range in.Mounts {
		pod = append(pod, podMount(m))
	}
	// A parent comes before what lies in it, whatever order the pod had.
	slices.SortStableFunc(pod, func(a, b specs.Mount) int {
		return strings.Count(a.Destination, "/") - strings.Count(b.Destination, "/")
	})
	return append(all, pod...)
}

func (in Input) systemMounts() []specs.Mount {
	sys, cgroup := "ro", "ro"
	if in.security().GetPrivileged() {
		sys, cgroup = "rw", "rw"
	}
	m := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", sys}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", cgroup}},
	}
	if in.Sandbox.IDMapping != nil && in.Sandbox.Namespaces[specs.NetworkNamespace] == "" {
		// Only the owner of the network namespace may mount a sysfs; show the machine's instead.
		for i := range m {
			if m[i].Destination == "/sys" {
				m[i] = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", sys}}
			}
		}
	}
	return m
}

// sandboxMounts returns mounts of the files that all containers of the pod share.
func (in Input) sandboxMounts() []specs.Mount {
	var m []specs.Mount
	write := "rw"
	if in.security().GetReadonlyRootfs() {
		write = "ro"
	}
	for _, dst := range []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} {
		if src := in.Sandbox.Etc[dst]; src != "" {
			m = append(m, specs.Mount{Destination: dst, Type: "bind", Source: src, Options: append([]string{"rbind", "rprivate", write}, in.Sandbox.EtcLocked...)})
		}
	}
	if in.Sandbox.Shm != "" {
		m = append(m, specs.Mount{Destination: "/dev/shm", Type: "bind", Source: in.Sandbox.Shm, Options: []string{"rbind", "rprivate", "rw"}})
	}
	return m
}

func podMount(m ResolvedMount) specs.Mount {
	opts := []string{"rbind", propagation(m.GetPropagation())}
	switch {
	case m.GetReadonly() && m.GetRecursiveReadOnly():
		opts = append(opts, "rro")
	case m.GetReadonly():
		opts = append(opts, "ro")
	default:
		opts = append(opts, "rw")
	}
	opts = append(opts, m.GetMountOptions()...) // checked earlier: only noexec, nodev, nosuid
	for _, o := range m.Locked {
		if !slices.Contains(opts, o) {
			opts = append(opts, o)
		}
	}
	return specs.Mount{Destination: filepath.Clean(m.GetContainerPath()), Type: "bind", Source: m.Source, Options: opts}
}

func propagation(p runtimeapi.MountPropagation) string {
	switch p {
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		return "rslave"
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		return "rshared"
	default:
		return "rprivate"
	}
}

// rootfsPropagation returns the propagation of the container's root, which must let through what
// its mounts propagate.
func rootfsPropagation(ms []ResolvedMount) string {
	p := ""
	for _, m := range ms {
		switch m.GetPropagation() {
		case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			return "rshared"
		case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
			p = "rslave"
		}
	}
	return p
}
