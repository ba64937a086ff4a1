package policy

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/pods"
)

// Facts is what a plan follows from.
type Facts struct {
	Node       string // pods of this node are isolated
	Pods       []*v1.Pod
	Known      map[Identity][]netip.Addr // addresses of this node's pods, before their statuses have them
	Namespaces map[string]labels.Set     // their labels, by name
	Policies   []*networkingv1.NetworkPolicy
}

// Direction is one in which a pod can be isolated.
type Direction = networkingv1.PolicyType

// Plan says which addresses are isolated in a direction, and what is allowed there all the same.
type Plan struct {
	Isolated map[Direction]map[netip.Addr]string // address → class
	// Classes are those that Isolated names: pods for which the same policies say the same share one.
	Classes map[Direction]map[string][]Opening
	// Owners are the pods of this node, by their addresses.
	Owners map[netip.Addr]Identity
}

// Directions are all there are.
var Directions = []Direction{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}

// peer is a pod that has addresses of its own.
type peer struct {
	pod       *v1.Pod
	labels    labels.Set
	addresses []netip.Addr
}

// planner holds what one plan looks up again and again.
type planner struct {
	facts    *Facts
	peers    []*peer
	policies map[string][]*rules // by namespace
	chosen   map[string][]*peer  // by selectors
}

// rules is a policy with its selector.
type rules struct {
	*networkingv1.NetworkPolicy
	selector labels.Selector
}

// NewPlan decides what the kernel has to do for the policies of a node.
func NewPlan(f *Facts) Plan {
	out := Plan{map[Direction]map[netip.Addr]string{}, map[Direction]map[string][]Opening{}, map[netip.Addr]Identity{}}
	for _, d := range Directions {
		out.Isolated[d], out.Classes[d] = map[netip.Addr]string{}, map[string][]Opening{}
	}
	if len(f.Policies) == 0 {
		return out
	}
	p := planner{facts: f, peers: owners(f.Pods, f.Known), policies: byNamespace(f.Policies), chosen: map[string][]*peer{}}
	for _, target := range p.peers {
		if target.pod.Spec.NodeName != f.Node {
			continue
		}
		for _, a := range target.addresses {
			out.Owners[a] = identityOf(target.pod)
		}
		for _, d := range Directions {
			p.isolate(target, d, &out)
		}
	}
	return out
}

// byNamespace sorts the policies, so that a class has one name only.
func byNamespace(policies []*networkingv1.NetworkPolicy) map[string][]*rules {
	out := map[string][]*rules{}
	for _, np := range policies {
		out[np.Namespace] = append(out[np.Namespace], &rules{np, selector(&np.Spec.PodSelector)})
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b *rules) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

// selector reads a selector. One that the API server should have refused selects nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// owners returns the pods that have addresses of their own. Pods that have ended have none. What the
// runtime says of an address counts before what statuses say; of two that claim the same one (the store
// may know of the next pod before the end of the last) the younger has it.
func owners(all []*v1.Pod, known map[Identity][]netip.Addr) []*peer {
	var out []*peer
	for _, pod := range all {
		if !pod.Spec.HostNetwork && !pods.IsTerminal(pod.Status.Phase) {
			out = append(out, &peer{pod: pod, labels: labelsOf(pod)})
		}
	}
	slices.SortFunc(out, func(a, b *peer) int {
		return cmp.Or(b.pod.CreationTimestamp.Compare(a.pod.CreationTimestamp.Time), strings.Compare(string(a.pod.UID), string(b.pod.UID)))
	})
	taken := map[netip.Addr]bool{}
	for _, p := range out {
		p.take(known[identityOf(p.pod)], taken)
	}
	for _, p := range out {
		p.take(addressesOf(p.pod), taken)
	}
	return slices.DeleteFunc(out, func(p *peer) bool { return len(p.addresses) == 0 })
}

// take gives a pod the addresses that nobody has yet.
func (p *peer) take(addresses []netip.Addr, taken map[netip.Addr]bool) {
	for _, a := range addresses {
		if !taken[a] {
			taken[a] = true
			p.addresses = append(p.addresses, a)
		}
	}
}

func labelsOf(pod *v1.Pod) labels.Set { return pod.Labels }

func addressesOf(pod *v1.Pod) (out []netip.Addr) {
	add := func(s string) {
		if a, err := netip.ParseAddr(s); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	add(pod.Status.PodIP)
	for _, ip := range pod.Status.PodIPs {
		add(ip.IP)
	}
	return out
}

// isolate puts a pod into its class, if any policy selects it for the direction.
func (p *planner) isolate(target *peer, d Direction, out *Plan) {
	var selecting []*rules
	for _, r := range p.policies[target.pod.Namespace] {
		if applies(&r.Spec, d) && r.selector.Matches(target.labels) {
			selecting = append(selecting, r)
		}
	}
	if len(selecting) == 0 {
		return
	}
	class := p.class(target, selecting, d)
	if _, known := out.Classes[d][class]; !known {
		out.Classes[d][class] = openings(p.grants(target, selecting, d))
	}
	for _, a := range target.addresses {
		out.Isolated[d][a] = class
	}
}

// applies reports whether a policy isolates in the direction. The API server fills the types in;
// the same rule holds for one that came without.
func applies(spec *networkingv1.NetworkPolicySpec, d Direction) bool {
	if len(spec.PolicyTypes) > 0 {
		return slices.Contains(spec.PolicyTypes, d)
	}
	return d == networkingv1.PolicyTypeIngress || len(spec.Egress) > 0
}

// class names what all pods have in common that these policies select: the policies, and what names
// of ports mean at the pod.
func (p *planner) class(target *peer, selecting []*rules, d Direction) string {
	var b strings.Builder
	b.WriteString(target.pod.Namespace)
	for _, r := range selecting {
		b.WriteString("/" + r.Name)
		if d == networkingv1.PolicyTypeEgress {
			continue // names mean what they mean at the other side
		}
		for _, in := range r.Spec.Ingress {
			for i := range in.Ports {
				if port := in.Ports[i].Port; port != nil && port.Type == intstr.String {
					fmt.Fprintf(&b, " %v", portsAt(target.pod, &in.Ports[i]))
				}
			}
		}
	}
	return b.String()
}

// grant is what one rule allows: any of the ports with any of the peers.
type grant struct {
	peers []addresses
	ports portSet
}

func (p *planner) grants(target *peer, selecting []*rules, d Direction) (out []grant) {
	for _, r := range selecting {
		if d == networkingv1.PolicyTypeIngress {
			for i := range r.Spec.Ingress {
				in := &r.Spec.Ingress[i]
				out = append(out, grant{p.addresses(r.Namespace, in.From), portsOf(in.Ports, target.pod)})
			}
			continue
		}
		for i := range r.Spec.Egress {
			out = append(out, p.egress(r.Namespace, &r.Spec.Egress[i])...)
		}
	}
	return out
}

// egress is for ports with numbers, and with names: those differ from peer to peer, and what is not a
// pod has none.
func (p *planner) egress(namespace string, rule *networkingv1.NetworkPolicyEgressRule) []grant {
	out := []grant{{p.addresses(namespace, rule.To), portsOf(rule.Ports, nil)}}
	named := slices.ContainsFunc(rule.Ports, func(np networkingv1.NetworkPolicyPort) bool {
		return np.Port != nil && np.Port.Type == intstr.String
	})
	if !named {
		return out
	}
	for _, other := range p.selected(namespace, rule.To) {
		if ports := portsOf(rule.Ports, other.pod); !ports.empty() {
			out = append(out, grant{other.ranges(), ports})
		}
	}
	return out
}

// selected returns the pods that peers select; no peers at all stand for everybody.
func (p *planner) selected(namespace string, to []networkingv1.NetworkPolicyPeer) []*peer {
	if len(to) == 0 {
		return p.peers
	}
	var out []*peer
	for i := range to {
		if to[i].IPBlock == nil {
			out = append(out, p.choose(namespace, &to[i])...)
		}
	}
	return out
}

// addresses returns those of peers; no peers at all stand for everybody.
func (p *planner) addresses(namespace string, from []networkingv1.NetworkPolicyPeer) (out []addresses) {
	if len(from) == 0 {
		return everybody()
	}
	for i := range from {
		if from[i].IPBlock != nil {
			out = append(out, block(from[i].IPBlock)...)
			continue
		}
		for _, other := range p.choose(namespace, &from[i]) {
			out = append(out, other.ranges()...)
		}
	}
	return out
}

func (p *peer) ranges() (out []addresses) {
	for _, a := range p.addresses {
		out = append(out, addresses{a, a})
	}
	return out
}

// choose returns the pods that a peer's selectors select. Without one for namespaces, only those of
// the policy's own can be.
func (p *planner) choose(namespace string, who *networkingv1.NetworkPolicyPeer) []*peer {
	podSelector, nsSelector := labels.Everything(), labels.Selector(nil)
	if who.PodSelector != nil {
		podSelector = selector(who.PodSelector)
	}
	key := namespace + "\x00"
	if who.NamespaceSelector != nil {
		nsSelector = selector(who.NamespaceSelector)
		key = "\x00" + metav1.FormatLabelSelector(who.NamespaceSelector)
	}
	key += "\x00" + metav1.FormatLabelSelector(who.PodSelector)
	if out, ok := p.chosen[key]; ok {
		return out
	}
	out := []*peer{}
	for _, other := range p.peers {
		home := other.pod.Namespace
		if nsSelector == nil && home != namespace {
			continue
		}
		if nsSelector != nil {
			set, known := p.facts.Namespaces[home]
			if !known || !nsSelector.Matches(set) {
				continue
			}
		}
		if podSelector.Matches(other.labels) {
			out = append(out, other)
		}
	}
	p.chosen[key] = out
	return out
}

// portsOf returns the ports of a rule; none stand for all. Names are looked up at the pod; with nil,
// ports with names are left out.
func portsOf(list []networkingv1.NetworkPolicyPort, at *v1.Pod) portSet {
	if len(list) == 0 {
		return portSet{all: true}
	}
	var out portSet
	for i := range list {
		out.ranges = append(out.ranges, portsAt(at, &list[i])...)
	}
	out.ranges = merged(out.ranges)
	return out
}

// portsAt returns what one entry of a rule means at a pod.
func portsAt(pod *v1.Pod, np *networkingv1.NetworkPolicyPort) []ports {
	protocol := v1.ProtocolTCP
	if np.Protocol != nil {
		protocol = *np.Protocol
	}
	switch {
	case np.Port == nil:
		return []ports{{protocol, 0, math.MaxUint16}}
	case np.Port.Type == intstr.Int:
		first := np.Port.IntVal
		last := first
		if np.EndPort != nil {
			last = *np.EndPort
		}
		if first < 0 || last > math.MaxUint16 || last < first {
			return nil
		}
		return []ports{{protocol, uint16(first), uint16(last)}}
	case pod == nil:
		return nil
	}
	var out []ports
	for c := range pods.Containers(&pod.Spec) {
		for _, cp := range c.Ports {
			if cp.Name == np.Port.StrVal && cmp.Or(cp.Protocol, v1.ProtocolTCP) == protocol {
				out = append(out, ports{protocol, uint16(cp.ContainerPort), uint16(cp.ContainerPort)})
			}
		}
	}
	return out
}
