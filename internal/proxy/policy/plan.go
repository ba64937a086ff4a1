package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/netpol"
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
type Direction = netpol.Direction

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
		out[np.Namespace] = append(out[np.Namespace], &rules{np, netpol.Selector(&np.Spec.PodSelector)})
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b *rules) int { return strings.Compare(a.Name, b.Name) })
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
		if netpol.Applies(&r.Spec, d) && r.selector.Matches(target.labels) {
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
					fmt.Fprintf(&b, " %v", netpol.PortsAt(target.pod, &in.Ports[i]))
				}
			}
		}
	}
	return b.String()
}

// grant is what one rule allows: any of the ports with any of the peers.
type grant struct {
	peers []netpol.Addresses
	ports netpol.PortSet
}

func (p *planner) grants(target *peer, selecting []*rules, d Direction) (out []grant) {
	for _, r := range selecting {
		if d == networkingv1.PolicyTypeIngress {
			for i := range r.Spec.Ingress {
				in := &r.Spec.Ingress[i]
				out = append(out, grant{p.addresses(r.Namespace, in.From), netpol.PortsOf(in.Ports, target.pod)})
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
	out := []grant{{p.addresses(namespace, rule.To), netpol.PortsOf(rule.Ports, nil)}}
	named := slices.ContainsFunc(rule.Ports, func(np networkingv1.NetworkPolicyPort) bool {
		return np.Port != nil && np.Port.Type == intstr.String
	})
	if !named {
		return out
	}
	for _, other := range p.selected(namespace, rule.To) {
		if ports := netpol.PortsOf(rule.Ports, other.pod); !ports.Empty() {
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
func (p *planner) addresses(namespace string, from []networkingv1.NetworkPolicyPeer) (out []netpol.Addresses) {
	if len(from) == 0 {
		return everybody()
	}
	for i := range from {
		if from[i].IPBlock != nil {
			out = append(out, netpol.Block(from[i].IPBlock)...)
			continue
		}
		for _, other := range p.choose(namespace, &from[i]) {
			out = append(out, other.ranges()...)
		}
	}
	return out
}

func (p *peer) ranges() (out []netpol.Addresses) {
	for _, a := range p.addresses {
		out = append(out, netpol.Addresses{First: a, Last: a})
	}
	return out
}

// choose returns the pods that a peer's selectors select. Without one for namespaces, only those of
// the policy's own can be.
func (p *planner) choose(namespace string, who *networkingv1.NetworkPolicyPeer) []*peer {
	key := namespace + "\x00"
	if who.NamespaceSelector != nil {
		key = "\x00" + metav1.FormatLabelSelector(who.NamespaceSelector)
	}
	key += "\x00" + metav1.FormatLabelSelector(who.PodSelector)
	if out, ok := p.chosen[key]; ok {
		return out
	}
	out, choice := []*peer{}, netpol.ChoiceOf(namespace, who)
	for _, other := range p.peers {
		if home := other.pod.Namespace; choice.Takes(home, p.facts.Namespaces[home], other.labels) {
			out = append(out, other)
		}
	}
	p.chosen[key] = out
	return out
}
