package netpol

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Party is one end of a connection.
type Party struct {
	// Pod is nil for what is no pod with addresses of its own: a node and what is on its network, the
	// world outside.
	Pod *v1.Pod
	// Home has the labels of the pod's namespace; nil, if they are not known.
	Home      labels.Set
	Addresses []netip.Addr
}

// Connection is one that somebody wants to make to a port.
type Connection struct {
	From, To Party
	Protocol v1.Protocol
	Port     uint16
}

// Verdict is what the policies of one direction say about a connection.
type Verdict struct {
	// Isolating are the policies that select the pod; none, if everything passes.
	Isolating []*networkingv1.NetworkPolicy
	// Allowing are those of them that let the connection pass. One is enough.
	Allowing []*networkingv1.NetworkPolicy
	// Lacks says of each policy that isolates, and does not allow, what it lacks.
	Lacks map[string]Lack
}

// Passes reports whether the connection passes.
func (v *Verdict) Passes() bool { return len(v.Isolating) == 0 || len(v.Allowing) > 0 }

// Lack says why a policy does not allow a connection.
type Lack string

const (
	// NoRule is lacking where a policy allows nothing at all.
	NoRule Lack = "it has no rule"
	// NotThePeer is lacking where rules have the port, for other peers.
	NotThePeer Lack = "its rules for the port are for others"
	// NotThePort is lacking where rules have the peer, with other ports.
	NotThePort Lack = "its rules for the peer are for other ports"
	// Neither is lacking where no rule has the port or the peer.
	Neither Lack = "no rule of it is about the peer or the port"
)

// Judge says what policies mean for a connection in one direction: for ingress those of the receiver's
// namespace count, for egress those of the sender's. A party that is no pod is isolated by none.
func Judge(d Direction, policies []*networkingv1.NetworkPolicy, c *Connection) (v Verdict) {
	self, other := &c.To, &c.From
	if d == networkingv1.PolicyTypeEgress {
		self, other = other, self
	}
	if self.Pod == nil || other.Pod != nil && self.Pod.UID == other.Pod.UID { // talks to itself
		return v
	}
	v.Lacks = map[string]Lack{}
	for _, np := range policies {
		if np.Namespace != self.Pod.Namespace || !Applies(&np.Spec, d) || !Selector(&np.Spec.PodSelector).Matches(labels.Set(self.Pod.Labels)) {
			continue
		}
		v.Isolating = append(v.Isolating, np)
		if lack := lacks(d, np, other, c); lack == "" {
			v.Allowing = append(v.Allowing, np)
		} else {
			v.Lacks[np.Name] = lack
		}
	}
	slices.SortFunc(v.Isolating, func(a, b *networkingv1.NetworkPolicy) int { return strings.Compare(a.Name, b.Name) })
	return v
}

// rule is one of either direction.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func rulesOf(d Direction, np *networkingv1.NetworkPolicy) (out []rule) {
	if d == networkingv1.PolicyTypeEgress {
		for _, r := range np.Spec.Egress {
			out = append(out, rule{r.To, r.Ports})
		}
		return out
	}
	for _, r := range np.Spec.Ingress {
		out = append(out, rule{r.From, r.Ports})
	}
	return out
}

// lacks says what keeps a policy from allowing the connection; nothing, if it does allow it. Names of ports
// mean what they mean at the receiver.
func lacks(d Direction, np *networkingv1.NetworkPolicy, other *Party, c *Connection) Lack {
	all := rulesOf(d, np)
	if len(all) == 0 {
		return NoRule
	}
	peer, port := false, false
	for i := range all {
		hasPeer, names := isPeer(all[i].peers, np.Namespace, other), c.To.Pod
		if d == networkingv1.PolicyTypeEgress && !hasPeer.asPod {
			names = nil // an address has no names of ports, whoever has the address
		}
		hasPort := PortsOf(all[i].ports, names).Has(c.Protocol, c.Port)
		if hasPeer.any() && hasPort {
			return ""
		}
		peer, port = peer || hasPeer.any(), port || PortsOf(all[i].ports, c.To.Pod).Has(c.Protocol, c.Port)
	}
	switch {
	case port:
		return NotThePeer
	case peer:
		return NotThePort
	}
	return Neither
}

// match is how peers include a party: by selectors, or everybody; by a block of addresses.
type match struct{ asPod, asAddress bool }

func (m match) any() bool { return m.asPod || m.asAddress }

// isPeer says how peers in a policy of the namespace include a party; none stand for everybody. A party with
// addresses of several families is included if one of them is.
func isPeer(peers []networkingv1.NetworkPolicyPeer, namespace string, p *Party) match {
	if len(peers) == 0 {
		return match{true, true}
	}
	var m match
	for i := range peers {
		if b := peers[i].IPBlock; b != nil {
			m.asAddress = m.asAddress || slices.ContainsFunc(Block(b), func(r Addresses) bool { return slices.ContainsFunc(p.Addresses, r.Has) })
			continue
		}
		choice := ChoiceOf(namespace, &peers[i])
		m.asPod = m.asPod || p.Pod != nil && choice.Takes(p.Pod.Namespace, p.Home, p.Pod.Labels)
	}
	return m
}

// PartyOf returns a pod as a party. On its node's network it is no pod to policies, but the node.
func PartyOf(p *v1.Pod, home labels.Set) Party {
	if p.Spec.HostNetwork {
		return Party{Addresses: parsed(p.Status.HostIP, p.Status.HostIPs)}
	}
	return Party{Pod: p, Home: home, Addresses: parsed(p.Status.PodIP, p.Status.PodIPs)}
}

func parsed[T v1.PodIP | v1.HostIP](first string, list []T) (out []netip.Addr) {
	all := []string{first}
	for _, ip := range list {
		all = append(all, v1.PodIP(ip).IP)
	}
	for _, s := range all {
		if a, err := netip.ParseAddr(s); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	return out
}
