package podplan

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
)

// AdmitInput is what admission depends on.
type AdmitInput struct {
	Pod *v1.Pod
	// Node as it is registered, with its allocatable resources.
	Node *v1.Node
	// Others are the pods that were admitted and have not ended.
	Others []*v1.Pod
	// Static pods are not checked against taints.
	Static bool
	// AllowedSysctls that are not safe, by name or by prefix ending in "*".
	AllowedSysctls []string
	// AppArmor is true if the kernel enforces AppArmor profiles.
	AppArmor bool
}

// check returns why a pod may not run, or empty strings if it may.
type check func(AdmitInput) (reason, message string)

var (
	// first are the checks that no amount of free room can help with.
	first = []check{admitSysctls, admitOS, admitGroups}
	// then are the scheduler's own checks, repeated for what has changed since it decided, and for
	// pods that it never saw.
	then = []check{admitAffinity, admitPorts, admitTaints, admitAppArmor, admitFeatures}
)

// Admit decides, once, whether a pod may run on the node. The checks are the node's own, beyond
// what the scheduler promised: sysctls, operating system, resources, node selector and affinity,
// host ports, NoExecute taints, features.
func Admit(in AdmitInput) Verdict {
	for _, check := range slices.Concat(first, []check{admitResources}, then) {
		if reason, message := check(in); reason != "" {
			return Verdict{Reason: reason, Message: message}
		}
	}
	return Verdict{Admitted: true, Allocated: allocated(in.Pod), Pod: in.Pod.Spec.Resources.DeepCopy()}
}

func allocated(pod *v1.Pod) map[string]v1.ResourceRequirements {
	out := map[string]v1.ResourceRequirements{}
	for c := range pods.Containers(&pod.Spec) {
		out[c.Name] = v1.ResourceRequirements{Limits: c.Resources.Limits.DeepCopy(), Requests: c.Resources.Requests.DeepCopy()}
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

// admitGroups refuses a strict supplemental groups policy where the runtime cannot enforce it
// (KEP-3619).
func admitGroups(in AdmitInput) (string, string) {
	sc := in.Pod.Spec.SecurityContext
	if sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != v1.SupplementalGroupsPolicyStrict {
		return "", ""
	}
	if f := in.Node.Status.Features; f != nil && f.SupplementalGroupsPolicy != nil && *f.SupplementalGroupsPolicy {
		return "", ""
	}
	return "SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"
}

// admitAppArmor refuses a profile that nothing would enforce.
func admitAppArmor(in AdmitInput) (string, string) {
	if in.AppArmor || !wantsAppArmor(in.Pod) {
		return "", ""
	}
	return "AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"
}

func wantsAppArmor(pod *v1.Pod) bool {
	asks := func(p *v1.AppArmorProfile) bool { return p != nil && p.Type != v1.AppArmorProfileTypeUnconfined }
	if sc := pod.Spec.SecurityContext; sc != nil && asks(sc.AppArmorProfile) {
		return true
	}
	for c := range pods.Containers(&pod.Spec) {
		if sc := c.SecurityContext; sc != nil && asks(sc.AppArmorProfile) {
			return true
		}
	}
	for key, profile := range pod.Annotations {
		if strings.HasPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && profile != v1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}

// requestsOf returns what a pod asks of the node itself.
func requestsOf(pod *v1.Pod, o resourcehelper.PodResourcesOptions) v1.ResourceList {
	all := resourcehelper.PodRequests(pod, o)
	pods.DropDevices(pod, all)
	return all
}

func admitResources(in AdmitInput) (string, string) {
	capacity := in.Node.Status.Allocatable
	if pods, ok := capacity[v1.ResourcePods]; ok {
		if used := int64(len(in.Others)); used+1 > pods.Value() {
			return outOf(v1.ResourcePods, 1, used, pods.Value())
		}
	}
	requests := requestsOf(in.Pod, resourcehelper.PodResourcesOptions{})
	used := v1.ResourceList{}
	for _, o := range in.Others {
		add(used, requestsOf(o, resourcehelper.PodResourcesOptions{UseStatusResources: true}))
	}
	for _, name := range ordered(requests) {
		have, known := capacity[name]
		// Huge pages of a size that the node lacks count as zero. Any other unknown resource is the
		// cluster's, or the node has not reported its capacity yet.
		known = known || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) && len(capacity) > 0
		want, taken := requests[name], used[name]
		sum := want.DeepCopy()
		sum.Add(taken)
		if !want.IsZero() && known && sum.Cmp(have) > 0 {
			return outOf(name, units(name, want), units(name, taken), units(name, have))
		}
	}
	return "", ""
}

// Readmitted returns the verdict on a pod that runs but whose record was lost: it was admitted
// then, with the resources that its status reports.
func Readmitted(pod *v1.Pod, st *v1.PodStatus) Verdict {
	v := Verdict{Admitted: true, Allocated: allocated(pod), Pod: pod.Spec.Resources.DeepCopy()}
	for name, r := range v.Allocated {
		cs := findStatus(st, name)
		if cs == nil || cs.Resources == nil {
			continue
		}
		r.Requests, r.Limits = cs.Resources.Requests.DeepCopy(), cs.Resources.Limits.DeepCopy()
		if cs.AllocatedResources != nil {
			r.Requests = cs.AllocatedResources.DeepCopy()
		}
		v.Allocated[name] = r
	}
	return v
}

// DecideResize decides whether a running pod can have what its spec now asks for: at once, after
// other pods have gone or shrunk, or never.
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
	return ReasonOutOf + string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
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

// ordered returns the names of resources in the order in which the scheduler checks them.
func ordered(l v1.ResourceList) []v1.ResourceName {
	rank := func(n v1.ResourceName) int {
		i := slices.Index([]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}, n)
		if i < 0 {
			return 3
		}
		return i
	}
	return slices.SortedFunc(maps.Keys(l), func(a, b v1.ResourceName) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
}

func admitAffinity(in AdmitInput) (string, string) {
	ok, err := nodeaffinity.GetRequiredNodeAffinity(in.Pod).Match(in.Node)
	if err == nil && !ok {
		return ReasonNodeAffinity, "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
	}
	if err != nil {
		return ReasonNodeAffinity, "Predicate NodeAffinity failed: " + err.Error()
	}
	return "", ""
}

func admitPorts(in AdmitInput) (string, string) {
	var taken []v1.ContainerPort
	for _, o := range in.Others {
		taken = append(taken, pods.HostPorts(o)...)
	}
	for _, want := range pods.HostPorts(in.Pod) {
		for _, t := range taken {
			if want.HostPort == t.HostPort && protocol(want) == protocol(t) &&
				(anyIP(want.HostIP) || anyIP(t.HostIP) || want.HostIP == t.HostIP) {
				return "NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
			}
		}
	}
	return "", ""
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
	only := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
	if _, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), in.Node.Spec.Taints, in.Pod.Spec.Tolerations, only, true); found {
		return "TaintToleration", "Predicate TaintToleration failed: node(s) had untolerated taint(s)"
	}
	return "", ""
}
