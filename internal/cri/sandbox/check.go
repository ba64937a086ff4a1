package sandbox

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/netns"
)

// Check refuses what cannot be made.
func Check(c *runtimeapi.PodSandboxConfig) error {
	if c.GetMetadata() == nil {
		return crierror.Invalid("the sandbox has no metadata")
	}
	if err := CheckUserns(c.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return err
	}
	for _, p := range c.GetPortMappings() {
		if ip := p.GetHostIp(); ip != "" {
			if _, err := netip.ParseAddr(ip); err != nil {
				return crierror.Invalid("host port %d: %w", p.GetHostPort(), err)
			}
		}
	}
	if _, err := bandwidth(c.GetAnnotations()); err != nil {
		return crierror.Invalid("%w", err)
	}
	return checkSysctls(c.GetLinux().GetSysctls(), c.GetLinux().GetSecurityContext().GetNamespaceOptions())
}

// sysctlKinds are the namespaces whose sysctls a pod may set.
var sysctlKinds = map[sysctl.Namespace]netns.Kind{
	sysctl.NetNamespace: netns.Net, sysctl.IPCNamespace: netns.IPC, sysctl.UTSNamespace: netns.UTS,
}

// checkSysctls refuses sysctls that would change the machine, whoever asks. Those of a user
// namespace would need a process in it.
func checkSysctls(all map[string]string, o *runtimeapi.NamespaceOption) error {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, err := netns.SysctlPath(name); err != nil {
			return crierror.Invalid("%w", err)
		}
		ns, _, _ := sysctl.GetNamespace(name)
		kind, known := sysctlKinds[ns]
		if !known {
			return crierror.Invalid("sysctl %q is not in a separate kernel namespace", name)
		}
		if !slices.Contains(kinds(o), kind) {
			return crierror.Invalid("sysctl %q is not allowed in the host's %s namespace", name, ns)
		}
	}
	return nil
}

// bandwidth reads the limits that a pod asks for, in bits per second.
func bandwidth(annotations map[string]string) (cni.Bandwidth, error) {
	var b cni.Bandwidth
	for key, limit := range map[string]*uint64{
		"kubernetes.io/ingress-bandwidth": &b.Ingress,
		"kubernetes.io/egress-bandwidth":  &b.Egress,
	} {
		s, ok := annotations[key]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(s)
		if err != nil {
			return b, fmt.Errorf("annotation %s: %q: %w", key, s, err)
		}
		if q.Value() < 1e3 || q.Value() > 1e15 {
			return b, fmt.Errorf("annotation %s: %s is not between 1k and 1P bits per second", key, s)
		}
		*limit = uint64(q.Value())
	}
	return b, nil
}
