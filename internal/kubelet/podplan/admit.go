package podplan

import (
	"fmt"
	"runtime"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	sysctl "k8s.io/component-helpers/node/util/sysctl"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// AdmitInput is what admission depends on.
type AdmitInput struct {
	Pod *v1.Pod
	// Node as it is registered, with its allocatable resources.
	Node *v1.Node
	// Others are the pods that were admitted and have not ended.
	Others []*v1.Pod
	// Static pods are not asked for taints that the node controller sets.
	Static bool
	// AllowedSysctls that are not safe, by name or by prefix ending in "*".
	AllowedSysctls []string
}

// Admit decides, once, whether a pod may run on the node. The checks are the
// node's own, beyond what the scheduler promised: resources, node selector and
// affinity, NoExecute taints, host ports, operating system, sysctls.
func Admit(in AdmitInput) Verdict {
	for _, check := range []func(AdmitInput) (reason, message string){
		admitOS, admitSysctls, admitResources, admitAffinity, admitPorts, admitTaints,
	} {
		if reason, message := check(in); reason != "" {
			return Verdict{Reason: reason, Message: message}
		}
	}
	return Verdict{Admitted: true, Allocated: allocated(in.Pod), Pod: in.Pod.Spec.Resources.DeepCopy()}
}

func allocated(pod *v1.Pod) map[string]v1.ResourceRequirements {
	out := map[string]v1.ResourceRequirements{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			out[list[i].Name] = v1.ResourceRequirements{Limits: r.Limits.DeepCopy(), Requests: r.Requests.DeepCopy()}
		}
	}
	return out
}

func admitOS(in AdmitInput) (string, string) {
	if label, ok := in.Pod.Labels[v1.LabelOSStable]; ok && label != runtime.GOOS {
		return "PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
	}
	if in.Pod.Spec.OS != nil && string(in.Pod.Spec.OS.Name) != runtime.GOOS {
		return "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
	}
	return "", ""
}

func admitResources(in AdmitInput) (string, string) {
	capacity := in.Node.Status.Allocatable
	if pods, ok := capacity[v1.ResourcePods]; ok {
		if used := int64(len(in.Others)); used+1 > pods.Value() {
			return outOf(v1.ResourcePods, 1, used, pods.Value())
		}
	}
	requests := resourcehelper.PodRequests(in.Pod, resourcehelper.PodResourcesOptions{})
	used := v1.ResourceList{}
	for _, o := range in.Others {
		add(used, resourcehelper.PodRequests(o, resourcehelper.PodResourcesOptions{UseStatusResources: true}))
	}
	for _, name := range sortedNames(requests) {
		have, known := capacity[name]
		if !known && name != v1.ResourceCPU && name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage {
			continue // a resource of the cluster, not of the node
		}
		want, taken := requests[name], used[name]
		sum := want.DeepCopy()
		sum.Add(taken)
		if !want.IsZero() && known && sum.Cmp(have) > 0 {
			return outOf(name, units(name, want), units(name, taken), units(name, have))
		}
	}
	return "", ""
}

// DecideResize decides whether a running pod can have what its spec asks for now: it
// can, it can once others have gone or shrunk, or it never can.
func DecideResize(in AdmitInput) ResizeDecision {
	requests := resourcehelper.PodRequests(in.Pod, resourcehelper.PodResourcesOptions{})
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		want, have := requests[name], in.Node.Status.Allocatable[name]
		if want.Cmp(have) > 0 {
			return ResizeDecision{Reason: v1.PodReasonInfeasible, Message: fmt.Sprintf(
				"Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, units(name, want), units(name, have))}
		}
	}
	if reason, message := admitResources(in); reason != "" {
		return ResizeDecision{Reason: v1.PodReasonDeferred, Message: message}
	}
	return ResizeDecision{Allocate: true}
}

func outOf(name v1.ResourceName, requested, used, capacity int64) (string, string) {
	return "OutOf" + string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		name, requested, used, capacity)
}

func units(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func add(sum, more v1.ResourceList) {
	for name, q := range more {
		s := sum[name]
		s.Add(q)
		sum[name] = s
	}
}

func sortedNames(l v1.ResourceList) []v1.ResourceName {
	names := make([]v1.ResourceName, 0, len(l))
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func admitAffinity(in AdmitInput) (string, string) {
	ok, err := nodeaffinity.GetRequiredNodeAffinity(in.Pod).Match(in.Node)
	if err == nil && !ok {
		return "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
	}
	if err != nil {
		return "NodeAffinity", "Predicate NodeAffinity failed: " + err.Error()
	}
	return "", ""
}

func admitPorts(in AdmitInput) (string, string) {
	var taken []v1.ContainerPort
	for _, o := range in.Others {
		taken = append(taken, hostPorts(o)...)
	}
	for _, want := range hostPorts(in.Pod) {
		for _, t := range taken {
			if want.HostPort == t.HostPort && protocol(want) == protocol(t) &&
				(anyIP(want.HostIP) || anyIP(t.HostIP) || want.HostIP == t.HostIP) {
				return "NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
			}
		}
	}
	return "", ""
}

func hostPorts(pod *v1.Pod) []v1.ContainerPort {
	var out []v1.ContainerPort
	collect := func(list []v1.Container) {
		for i := range list {
			for _, port := range list[i].Ports {
				if pod.Spec.HostNetwork && port.HostPort == 0 {
					port.HostPort = port.ContainerPort
				}
				if port.HostPort > 0 {
					out = append(out, port)
				}
			}
		}
	}
	collect(pod.Spec.Containers)
	for i := range pod.Spec.InitContainers {
		if IsSidecar(&pod.Spec.InitContainers[i]) {
			collect(pod.Spec.InitContainers[i : i+1])
		}
	}
	return out
}

func protocol(p v1.ContainerPort) v1.Protocol {
	if p.Protocol == "" {
		return v1.ProtocolTCP
	}
	return p.Protocol
}

func anyIP(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }

func admitTaints(in AdmitInput) (string, string) {
	if in.Static {
		return "", ""
	}
	for i := range in.Node.Spec.Taints {
		taint := &in.Node.Spec.Taints[i]
		if taint.Effect == v1.TaintEffectNoExecute && !tolerates(in.Pod, taint) {
			return "TaintToleration", "Predicate TaintToleration failed: node(s) had untolerated taint(s)"
		}
	}
	return "", ""
}

func tolerates(pod *v1.Pod, taint *v1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			return false
		}
		switch t.Operator {
		case v1.TolerationOpExists:
			return true
		case "", v1.TolerationOpEqual:
			return t.Key != "" && t.Value == taint.Value
		default:
			return false
		}
	})
}

// safeSysctls are namespaced and isolated per pod (KEP-34 and its successors).
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
	"net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports",
	"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

func admitSysctls(in AdmitInput) (string, string) {
	sc := in.Pod.Spec.SecurityContext
	if sc == nil {
		return "", ""
	}
	for _, s := range sc.Sysctls {
		name := sysctl.NormalizeName(s.Name)
		if !slices.Contains(safeSysctls, name) && !slices.ContainsFunc(in.AllowedSysctls, func(a string) bool { return matches(sysctl.NormalizeName(a), name) }) {
			return "SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name)
		}
	}
	return "", ""
}

func matches(pattern, name string) bool {
	if n := len(pattern) - 1; n >= 0 && pattern[n] == '*' {
		return len(name) >= n && name[:n] == pattern[:n]
	}
	return pattern == name
}
