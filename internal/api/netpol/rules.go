// Package netpol says what network policies mean (pure): which pods and addresses a rule is about, which
// ports, and whether policies let one connection pass. The node's enforcer makes its sets from it, and
// explanations say with it who is kept out.
package netpol

import (
	"cmp"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/pods"
)

// Direction is one in which a pod can be isolated.
type Direction = networkingv1.PolicyType

// Applies reports whether a policy isolates in the direction. The API server fills the types in;
// the same rule holds for one that came without.
func Applies(spec *networkingv1.NetworkPolicySpec, d Direction) bool {
	if len(spec.PolicyTypes) > 0 {
		return slices.Contains(spec.PolicyTypes, d)
	}
	return d == networkingv1.PolicyTypeIngress || len(spec.Egress) > 0
}

// Selector reads a selector. One that the API server should have refused selects nothing.
func Selector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// Choice is what the selectors of a peer say.
type Choice struct {
	namespace  string          // the only one there is to choose from, or
	namespaces labels.Selector // those with these labels
	pods       labels.Selector
}

// ChoiceOf reads the selectors of a peer in a policy of the namespace. Without one for namespaces, only
// pods of the policy's own can be chosen.
func ChoiceOf(namespace string, who *networkingv1.NetworkPolicyPeer) Choice {
	c := Choice{namespace: namespace, pods: labels.Everything()}
	if who.PodSelector != nil {
		c.pods = Selector(who.PodSelector)
	}
	if who.NamespaceSelector != nil {
		c.namespaces = Selector(who.NamespaceSelector)
	}
	return c
}

// Takes reports whether a pod with the labels is chosen. home has the labels of its namespace; nil are
// those of one that is not known yet.
func (c *Choice) Takes(namespace string, home, pod labels.Set) bool {
	if c.namespaces == nil && namespace != c.namespace {
		return false
	}
	if c.namespaces != nil && (home == nil || !c.namespaces.Matches(home)) {
		return false
	}
	return c.pods.Matches(pod)
}

// PortsOf returns the ports of a rule; none stand for all. Names are looked up at the pod; with nil,
// ports with names are left out.
func PortsOf(list []networkingv1.NetworkPolicyPort, at *v1.Pod) PortSet {
	if len(list) == 0 {
		return PortSet{All: true}
	}
	var out PortSet
	for i := range list {
		out.Ranges = append(out.Ranges, PortsAt(at, &list[i])...)
	}
	out.Ranges = Merge(out.Ranges)
	return out
}

// PortsAt returns what one entry of a rule means at a pod.
func PortsAt(pod *v1.Pod, np *networkingv1.NetworkPolicyPort) []Ports {
	protocol := v1.ProtocolTCP
	if np.Protocol != nil {
		protocol = *np.Protocol
	}
	switch {
	case np.Port == nil:
		return []Ports{{protocol, 0, math.MaxUint16}}
	case np.Port.Type == intstr.Int:
		first := np.Port.IntVal
		last := first
		if np.EndPort != nil {
			last = *np.EndPort
		}
		if first < 0 || last > math.MaxUint16 || last < first {
			return nil
		}
		return []Ports{{protocol, uint16(first), uint16(last)}}
	case pod == nil:
		return nil
	}
	var out []Ports
	for c := range pods.Containers(&pod.Spec) {
		for _, cp := range c.Ports {
			if cp.Name == np.Port.StrVal && cmp.Or(cp.Protocol, v1.ProtocolTCP) == protocol {
				out = append(out, Ports{protocol, uint16(cp.ContainerPort), uint16(cp.ContainerPort)})
			}
		}
	}
	return out
}
