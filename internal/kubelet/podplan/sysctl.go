package podplan

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls are namespaced and isolated per pod (KEP-34 and its successors).
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
	"net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports",
	"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

// CheckSysctlPatterns returns an error for a pattern of sysctls that belong to the whole machine.
func CheckSysctlPatterns(patterns []string) error {
	for _, p := range patterns {
		if ns, name, _ := sysctl.GetNamespace(p); ns == sysctl.UnknownNamespace {
			return fmt.Errorf("the sysctls %q are not known to be namespaced", name)
		}
	}
	return nil
}

func admitSysctls(in AdmitInput) (string, string) {
	sc := in.Pod.Spec.SecurityContext
	if sc == nil {
		return "", ""
	}
	for _, s := range sc.Sysctls {
		if why := forbidden(in, s); why != "" {
			return "SysctlForbidden", "forbidden sysctl: " + why
		}
	}
	return "", ""
}

// forbidden returns why a pod may not set a sysctl, or an empty string if it may.
func forbidden(in AdmitInput, s v1.Sysctl) string {
	name := sysctl.NormalizeName(s.Name)
	if !slices.ContainsFunc(slices.Concat(safeSysctls, in.AllowedSysctls), func(p string) bool { return matches(sysctl.NormalizeName(p), name) }) {
		return fmt.Sprintf("%q not allowlisted", name)
	}
	ns, _, _ := sysctl.GetNamespace(name)
	if ns == sysctl.IPCNamespace && in.Pod.Spec.HostIPC || ns == sysctl.NetNamespace && in.Pod.Spec.HostNetwork {
		return fmt.Sprintf("%q not allowed with host %s enabled", name, ns)
	}
	return ""
}

func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}
