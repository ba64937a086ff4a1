package oci

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// allCapabilities are the names of the capabilities, by number (linux/capability.h).
var allCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN",
	"CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL",
	"CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// defaultCapabilities are the fourteen that Docker made customary.
var defaultCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// CapabilityNames returns the names in a mask as in /proc/PID/status.
func CapabilityNames(mask uint64) []string {
	var names []string
	for i, n := range allCapabilities {
		if mask&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

// Capabilities applies what the pod adds and drops to the default set, or to the full set for a
// privileged container. The result only has what this process may grant. A name that does not
// exist is an error; one that cannot be granted here is not.
func Capabilities(sec *runtimeapi.LinuxContainerSecurityContext, available []string) (*specs.LinuxCapabilities, error) {
	c := sec.GetCapabilities()
	set := map[string]bool{}
	base := defaultCapabilities
	switch {
	case sec.GetPrivileged():
		base = allCapabilities
	case hasAll(c.GetDropCapabilities()):
		base = nil
	case hasAll(c.GetAddCapabilities()):
		base = allCapabilities
	}
	for _, n := range base {
		set[n] = true
	}
	// As in containerd: apply ALL first, then the additions, then the drops.
	if err := change(set, c.GetAddCapabilities(), true); err != nil {
		return nil, err
	}
	if !sec.GetPrivileged() {
		if err := change(set, c.GetDropCapabilities(), false); err != nil {
			return nil, err
		}
	}
	ambient := map[string]bool{}
	if err := change(ambient, c.GetAddAmbientCapabilities(), true); err != nil {
		return nil, err
	}
	for n := range ambient {
		set[n] = true
	}
	all, amb := ordered(set, available), ordered(ambient, available)
	return &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all, Inheritable: amb, Ambient: amb}, nil
}

func hasAll(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, "ALL") || strings.EqualFold(n, "CAP_ALL") })
}

func change(set map[string]bool, names []string, to bool) error {
	for _, n := range names {
		full := strings.ToUpper(n)
		if full == "ALL" || full == "CAP_ALL" {
			continue // already decided the initial set
		}
		if !strings.HasPrefix(full, "CAP_") {
			full = "CAP_" + full
		}
		if !slices.Contains(allCapabilities, full) {
			return fmt.Errorf("unknown capability %q", n)
		}
		if to {
			set[full] = true
		} else {
			delete(set, full)
		}
	}
	return nil
}

func ordered(set map[string]bool, available []string) []string {
	var out []string
	for _, n := range allCapabilities {
		if set[n] && slices.Contains(available, n) {
			out = append(out, n)
		}
	}
	return out
}
