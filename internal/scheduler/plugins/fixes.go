package plugins

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins/devices"
	"wherry.dev/internal/scheduler/plugins/volumes"
)

// lack is how much of a resource a node is short of for a pod.
type lack struct {
	name  v1.ResourceName
	ask   int64
	short int64 // of what is free
	never int64 // of what there is in all; 0 if an empty node would do
}

// amount writes an amount as users do.
func amount(name v1.ResourceName, n int64) string {
	switch name {
	case v1.ResourceCPU:
		return resource.NewMilliQuantity(n, resource.DecimalSI).String() + " CPU"
	case v1.ResourceMemory, v1.ResourceEphemeralStorage:
		const mi = 1 << 20
		if n > mi {
			n = (n + mi - 1) / mi * mi
		}
		return resource.NewQuantity(n, resource.BinarySI).String() + " " + string(name)
	case v1.ResourcePods:
		return fmt.Sprintf("room for %d more pods", n)
	}
	return resource.NewQuantity(n, resource.DecimalSI).String() + " " + string(name)
}

// lacks returns what a node is short of.
func lacks(info *framework.PodInfo, n fwk.NodeInfo) (out []lack) {
	want, has, used := info.CalculateResource().Resource, n.GetAllocatable(), n.GetRequested()
	check := func(name v1.ResourceName, ask, used, has int64) {
		if ask > 0 && ask > has-used {
			out = append(out, lack{name, ask, ask - (has - used), max(0, ask-has)})
		}
	}
	check(v1.ResourcePods, 1, int64(len(n.GetPods())), int64(has.GetAllowedPodNumber()))
	check(v1.ResourceCPU, want.GetMilliCPU(), used.GetMilliCPU(), has.GetMilliCPU())
	check(v1.ResourceMemory, want.GetMemory(), used.GetMemory(), has.GetMemory())
	check(v1.ResourceEphemeralStorage, want.GetEphemeralStorage(), used.GetEphemeralStorage(), has.GetEphemeralStorage())
	for name, ask := range want.GetScalarResources() {
		check(name, ask, used.GetScalarResources()[name], has.GetScalarResources()[name])
	}
	return out
}

// Closest returns the node that is short of the smallest part of what the pod asks for. There must be one.
func Closest(info *framework.PodInfo, nodes []fwk.NodeInfo) fwk.NodeInfo {
	best, least := nodes[0], -1.0
	for _, n := range nodes {
		parts := 0.0
		for _, l := range lacks(info, n) {
			parts += float64(l.short) / float64(l.ask)
		}
		if least < 0 || parts < least {
			best, least = n, parts
		}
	}
	return best
}

// Fixes returns, in words, what would keep the plugin that st is from, from rejecting the pod on a node. It has none
// for plugins that it does not know.
func Fixes(ctx context.Context, st *fwk.Status, info *framework.PodInfo, n fwk.NodeInfo) []string {
	pod, name := info.GetPod(), n.Node().Name
	switch st.Plugin() {
	case NodeResourcesFit{}.Name():
		return fixResources(info, n, st.Reasons())
	case NodeUnschedulable{}.Name():
		return []string{"uncordon the node: kubectl uncordon " + name}
	case NodeName{}.Name():
		return []string{fmt.Sprintf("create the node that spec.nodeName names: %s", pod.Spec.NodeName)}
	case TaintToleration{}.Name():
		repels := func(t *v1.Taint) bool {
			return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
		}
		if t, found := corev1.FindMatchingUntoleratedTaint(klog.FromContext(ctx), n.Node().Spec.Taints, pod.Spec.Tolerations, repels, true); found {
			return []string{
				fmt.Sprintf("remove the taint: kubectl taint node %s %s-", name, t.ToString()),
				fmt.Sprintf("tolerate the taint %s", t.ToString()),
			}
		}
	case NodeAffinity{}.Name():
		return []string{"label the node as the pod asks: " + asked(pod)}
	case NodePorts{}.Name():
		return fixPorts(pod, n)
	case (&PodTopologySpread{}).Name():
		return []string{"a node in a domain with fewer of these pods, fewer of them here, or a larger maxSkew"}
	case (&devices.Devices{}).Name():
		return fixDevices(pod, n, st.Message())
	case (&volumes.Binding{}).Name():
		return fixClaims(pod)
	case (&InterPodAffinity{}).Name():
		return []string{"pods that match its affinity in the node's domain, and none that its anti-affinity, or theirs, keeps apart"}
	}
	return nil
}

// FixesEverywhere is Fixes for what keeps a pod off all nodes, before anybody looks at one of them.
func FixesEverywhere(st *fwk.Status, pod *v1.Pod) []string {
	if st.Plugin() == (&volumes.Binding{}).Name() {
		return fixClaims(pod)
	}
	return nil
}

// fixResources looks at what the reasons name: what a node lacks may also be found among devices.
func fixResources(info *framework.PodInfo, n fwk.NodeInfo, reasons []string) []string {
	var free, add, out []string
	for _, l := range lacks(info, n) {
		if l.name != v1.ResourcePods && !slices.Contains(reasons, insufficient(l.name)) {
			continue
		}
		if l.never > 0 {
			add = append(add, amount(l.name, l.never))
		} else {
			free = append(free, amount(l.name, l.short))
		}
		if n.GetAllocatable().GetScalarResources()[l.name] == 0 && slices.Contains(devices.ExtendedResources(info.GetPod()), l.name) {
			out = append(out, fmt.Sprintf("a device class with extendedResourceName %s, and a driver that offers its devices on the node", l.name))
		}
	}
	switch {
	case len(add) > 0:
		return append([]string{fmt.Sprintf("a larger node: %s has %s too little even when it is empty", n.Node().Name, strings.Join(add, ", "))}, out...)
	case len(free) > 0:
		return []string{fmt.Sprintf("%s more on node %s, free or added", strings.Join(free, ", "), n.Node().Name)}
	}
	return nil
}

// fixDevices tells what there would have to be for the pod's claims and extended resources. Which devices match which
// request is for expressions of the claims and their classes to say.
func fixDevices(pod *v1.Pod, n fwk.NodeInfo, why string) []string {
	var claims []string
	for name, own := range maps.Collect(resourceclaim.PodClaims(pod)) {
		if s := pod.Status.ExtendedResourceClaimStatus; !own || s == nil || s.ResourceClaimName != name {
			claims = append(claims, name)
		}
	}
	slices.Sort(claims)
	all := strings.Join(claims, " and ")
	if why == devices.Elsewhere {
		return []string{fmt.Sprintf("room on a node that the devices of claim %s can reach, or the end of all other pods that use it", all)}
	}
	var asks []string
	if len(claims) > 0 {
		asks = append(asks, fmt.Sprintf("claim %s asks for", all))
	}
	for _, name := range devices.ExtendedResources(pod) {
		if n.GetAllocatable().GetScalarResources()[name] == 0 {
			asks = append(asks, fmt.Sprintf("%s stands for", name))
		}
	}
	return []string{
		fmt.Sprintf("free devices on node %s, as %s: end a pod that has them, or have a driver offer more (kubectl get resourceslices)",
			n.Node().Name, strings.Join(asks, ", and as ")),
		"other requests, or device classes that select more",
	}
}

// fixClaims tells where to look: what a claim waits for is known of the claim, and not of the pod.
func fixClaims(pod *v1.Pod) (out []string) {
	pods.References(pod, func(kind pods.Reference, name string) {
		if kind == pods.ReferenceClaim {
			out = append(out, fmt.Sprintf("a volume for claim %s (wherry explain pvc/%s), where the node can reach it", name, name))
		}
	})
	return out
}

func fixPorts(pod *v1.Pod, n fwk.NodeInfo) (out []string) {
	for _, want := range pods.HostPorts(pod) {
		for _, p := range n.GetPods() {
			for _, has := range pods.HostPorts(p.GetPod()) {
				used := fwk.HostPortInfo{}
				used.Add(has.HostIP, string(has.Protocol), has.HostPort)
				if used.CheckConflict(want.HostIP, string(want.Protocol), want.HostPort) {
					out = append(out, fmt.Sprintf("end pod %s/%s, which has port %d/%s of node %s",
						p.GetPod().Namespace, p.GetPod().Name, want.HostPort, want.Protocol, n.Node().Name))
				}
			}
		}
	}
	return out
}

// asked writes the labels that a pod wants nodes to have.
func asked(pod *v1.Pod) string {
	var out []string
	if len(pod.Spec.NodeSelector) > 0 {
		out = append(out, metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: pod.Spec.NodeSelector}))
	}
	if terms := requiredTerms(pod); terms != nil {
		var either []string
		for _, t := range terms.NodeSelectorTerms {
			var all []string
			for _, r := range slices.Concat(t.MatchExpressions, t.MatchFields) {
				one := fmt.Sprintf("%s %s", r.Key, r.Operator)
				if len(r.Values) > 0 {
					one += " (" + strings.Join(r.Values, ", ") + ")"
				}
				all = append(all, one)
			}
			either = append(either, strings.Join(all, " and "))
		}
		out = append(out, strings.Join(either, ", or "))
	}
	return strings.Join(out, "; ")
}
