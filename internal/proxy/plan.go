package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Node is what the plan needs to know about the node.
type Node struct {
	Name, Zone string
	// Addresses at which node ports are open.
	Addresses []netip.Addr
	// Reserved are TCP ports of the node's own programs. No service gets them at the node's addresses:
	// whoever may create services could take the API server's place otherwise.
	Reserved []uint16
}

// Rules are what the kernel has to do for one service on one node. They are values.
type Rules struct {
	Balancers  []Balancer
	Frontends  []Frontend
	ClusterIPs []netip.Addr
	// Hairpins are endpoints on this node, which may reach themselves through the service.
	Hairpins []netip.Addr
	// HealthPort is the port at which load balancers ask for local endpoints; 0 for none.
	HealthPort int32
	// LocalReady is how many ready endpoints are on this node.
	LocalReady int
}

// Balancer spreads connections over endpoints of one IP family.
type Balancer struct {
	Endpoints []netip.AddrPort
	Affinity  time.Duration // how long a client stays with its endpoint; 0: it does not
}

// Target is where a connection goes: to a balancer (an index), or nowhere.
type Target int

// Targets that are no balancers.
const (
	Reject Target = -1 - iota // nobody is there, and the client is told so
	Drop                      // there are endpoints, but not for this client
)

// Source says which connections through a frontend get an address of the node as their source.
type Source int

// Sources.
const (
	Keep       Source = iota
	Masquerade        // all
	OfTheNode         // those of the node itself
)

// Frontend is an address and a port of a service.
type Frontend struct {
	Address  netip.Addr
	Protocol v1.Protocol
	Port     uint16
	To       Target // from pods and the node; from everywhere, unless Outside says otherwise
	// Outside is for connections from elsewhere, if HasOutside.
	Outside    Target
	HasOutside bool
	Source     Source
	// Allowed are the only sources that may connect, if Guarded.
	Allowed []netip.Prefix
	Guarded bool
}

// endpoint is an endpoint of a port.
type endpoint struct {
	at                          netip.AddrPort
	ready, serving, terminating bool
	local                       bool
	zones, nodes                []string // hints
}

// Proxied reports whether a service is any of the proxy's business.
func Proxied(svc *v1.Service) bool {
	_, others := svc.Labels["service.kubernetes.io/service-proxy-name"]
	return svc.Spec.Type != v1.ServiceTypeExternalName && svc.Spec.ClusterIP != v1.ClusterIPNone && svc.Spec.ClusterIP != "" && !others
}

// Plan returns the rules for a service with these slices.
func Plan(svc *v1.Service, all []*discoveryv1.EndpointSlice, node Node) Rules {
	var r Rules
	if !Proxied(svc) {
		return r
	}
	for _, s := range svc.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(s); err == nil {
			r.ClusterIPs = append(r.ClusterIPs, ip)
		}
	}
	localReady, hairpins := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, ip := range r.ClusterIPs {
		for i := range svc.Spec.Ports {
			p := planner{svc: svc, port: &svc.Spec.Ports[i], cluster: ip, node: node, rules: &r}
			p.endpoints = endpointsOf(p.port, all, ip.Is4(), node.Name)
			p.plan()
			for _, e := range p.endpoints {
				if e.local && e.ready {
					localReady[e.at.Addr()] = true
				}
				if e.local && !slices.Contains(node.Addresses, e.at.Addr()) && !e.at.Addr().IsLoopback() {
					hairpins[e.at.Addr()] = true
				}
			}
		}
	}
	r.Hairpins = slices.SortedFunc(maps.Keys(hairpins), netip.Addr.Compare)
	r.LocalReady = len(localReady)
	if svc.Spec.Type == v1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
		r.HealthPort = svc.Spec.HealthCheckNodePort
	}
	return r
}

// endpointsOf returns a port's endpoints of one family, each once, in order. Slices that are labelled as those of a service
// without an address are for names alone, as with kube-proxy, whatever the service is by now.
func endpointsOf(port *v1.ServicePort, all []*discoveryv1.EndpointSlice, four bool, node string) []endpoint {
	found := map[netip.AddrPort]endpoint{}
	for _, s := range all {
		if _, headless := s.Labels[v1.IsHeadlessService]; headless || s.AddressType != familyName(four) {
			continue
		}
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.Port == nil || p.Name == nil && port.Name != "" || p.Name != nil && *p.Name != port.Name ||
				p.Protocol != nil && *p.Protocol != port.Protocol {
				continue
			}
			for j := range s.Endpoints {
				e, ok := endpointAt(&s.Endpoints[j], uint16(*p.Port), node)
				// While an endpoint moves from one slice to another, it may be in both.
				if old, twice := found[e.at]; ok && (!twice || !old.ready) {
					found[e.at] = e
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b endpoint) int { return a.at.Compare(b.at) })
}

func familyName(four bool) discoveryv1.AddressType {
	if four {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// endpointAt reads an endpoint of a slice. Only its first address counts; others are the same pod.
func endpointAt(e *discoveryv1.Endpoint, port uint16, node string) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	ip, err := netip.ParseAddr(e.Addresses[0])
	if err != nil {
		return endpoint{}, false
	}
	out := endpoint{
		at: netip.AddrPortFrom(ip, port), ready: isTrue(e.Conditions.Ready, true),
		terminating: isTrue(e.Conditions.Terminating, false), local: e.NodeName != nil && *e.NodeName == node,
	}
	out.serving = isTrue(e.Conditions.Serving, out.ready)
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			out.zones = append(out.zones, z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			out.nodes = append(out.nodes, n.Name)
		}
	}
	return out, true
}

func isTrue(b *bool, unset bool) bool {
	if b == nil {
		return unset
	}
	return *b
}

// planner plans for one port in one family.
type planner struct {
	svc       *v1.Service
	port      *v1.ServicePort
	cluster   netip.Addr
	node      Node
	endpoints []endpoint
	rules     *Rules
}

func (p *planner) plan() {
	internalLocal := p.svc.Spec.InternalTrafficPolicy != nil && *p.svc.Spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal
	externalLocal := p.svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
	outer := p.externals()
	all, local := p.usable(), p.usableHere()
	anywhere := len(all) > 0 || len(local) > 0
	var everywhere, here Target
	if needsAll := !internalLocal || len(outer) > 0; needsAll {
		everywhere = p.balancer(all, Reject)
	}
	if internalLocal || externalLocal && len(outer) > 0 {
		nobody := Reject
		if anywhere {
			nobody = Drop
		}
		here = p.balancer(local, nobody)
	}
	inner := Frontend{Address: p.cluster, Protocol: p.port.Protocol, Port: uint16(p.port.Port), To: everywhere}
	if internalLocal {
		inner.To = here
	}
	p.rules.Frontends = append(p.rules.Frontends, inner)
	for _, f := range outer {
		f.Protocol, f.To, f.Source = p.port.Protocol, everywhere, Masquerade
		if externalLocal {
			f.Outside, f.HasOutside, f.Source = here, true, OfTheNode
		}
		p.rules.Frontends = append(p.rules.Frontends, f)
	}
}

// reserved reports whether the port at an address from outside the service network is the node's own.
func (p *planner) reserved(ip netip.Addr) bool {
	return p.port.Protocol == v1.ProtocolTCP && slices.Contains(p.node.Reserved, uint16(p.port.Port)) &&
		(ip.IsLoopback() || slices.Contains(p.node.Addresses, ip.Unmap()))
}

// externals returns the frontends other than the cluster IP: address, port and who may connect.
func (p *planner) externals() (out []Frontend) {
	spec := &p.svc.Spec
	add := func(ip netip.Addr, port int32) *Frontend {
		if ip.Is4() != p.cluster.Is4() || port == 0 {
			return nil
		}
		out = append(out, Frontend{Address: ip, Port: uint16(port)})
		return &out[len(out)-1]
	}
	for _, s := range spec.ExternalIPs {
		if ip, err := netip.ParseAddr(s); err == nil && !p.reserved(ip) {
			add(ip, p.port.Port)
		}
	}
	if spec.Type == v1.ServiceTypeLoadBalancer {
		for _, in := range p.svc.Status.LoadBalancer.Ingress {
			ip, err := netip.ParseAddr(in.IP)
			if err != nil || in.IPMode != nil && *in.IPMode == v1.LoadBalancerIPModeProxy || p.reserved(ip) {
				continue
			}
			if f := add(ip, p.port.Port); f != nil {
				f.Allowed, f.Guarded = p.sources()
			}
		}
	}
	if spec.Type == v1.ServiceTypeNodePort || spec.Type == v1.ServiceTypeLoadBalancer {
		for _, ip := range p.node.Addresses {
			if !ip.IsLoopback() { // as nftables mode has them
				add(ip, p.port.NodePort)
			}
		}
	}
	return out
}

// sources returns who may use a load balancer. If that includes this node, its pods may use the load
// balancer's own addresses, too.
func (p *planner) sources() (allowed []netip.Prefix, guarded bool) {
	given := p.svc.Spec.LoadBalancerSourceRanges
	if text := p.svc.Annotations[v1.AnnotationLoadBalancerSourceRangesKey]; len(given) == 0 && text != "" {
		given = strings.Split(text, ",")
	}
	for _, s := range given {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			continue
		}
		guarded = true
		if prefix.Addr().Is4() != p.cluster.Is4() {
			continue
		}
		if prefix.Bits() == 0 {
			return nil, false
		}
		allowed = append(allowed, prefix.Masked())
	}
	return disjoint(allowed), guarded
}

// disjoint leaves out networks that others contain.
func disjoint(all []netip.Prefix) (out []netip.Prefix) {
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	for _, p := range all {
		if !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Overlaps(p) }) {
			out = append(out, p)
		}
	}
	return out
}

// balancer adds a balancer over the endpoints, and returns it, or instead if there are none.
func (p *planner) balancer(endpoints []netip.AddrPort, instead Target) Target {
	if len(endpoints) == 0 {
		return instead
	}
	b := Balancer{Endpoints: endpoints}
	if p.svc.Spec.SessionAffinity == v1.ServiceAffinityClientIP {
		b.Affinity = time.Duration(v1.DefaultClientIPServiceAffinitySeconds) * time.Second
		if c := p.svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			b.Affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	p.rules.Balancers = append(p.rules.Balancers, b)
	return Target(len(p.rules.Balancers) - 1)
}

// usable returns the endpoints that clients of this node should use: the ready ones, of these the
// closest if there are hints; without ready ones, those that are ending and still serve.
func (p *planner) usable() []netip.AddrPort {
	var ready []endpoint
	for _, e := range p.endpoints {
		if e.ready {
			ready = append(ready, e)
		}
	}
	if len(ready) == 0 {
		return addresses(p.endpoints, func(e endpoint) bool { return e.serving && e.terminating })
	}
	if out := closest(ready, func(e endpoint) []string { return e.nodes }, p.node.Name); out != nil {
		return out
	}
	if out := closest(ready, func(e endpoint) []string { return e.zones }, p.node.Zone); out != nil {
		return out
	}
	return addresses(ready, func(endpoint) bool { return true })
}

// closest returns the endpoints hinted for a place, or nil unless every endpoint has hints of the
// kind and some are for the place.
func closest(ready []endpoint, hints func(endpoint) []string, place string) []netip.AddrPort {
	if place == "" || slices.ContainsFunc(ready, func(e endpoint) bool { return len(hints(e)) == 0 }) {
		return nil
	}
	return addresses(ready, func(e endpoint) bool { return slices.Contains(hints(e), place) })
}

// usableHere returns the endpoints on this node: ready ones, else those that are ending and still
// serve.
func (p *planner) usableHere() []netip.AddrPort {
	if out := addresses(p.endpoints, func(e endpoint) bool { return e.local && e.ready }); len(out) > 0 {
		return out
	}
	return addresses(p.endpoints, func(e endpoint) bool { return e.local && e.serving && e.terminating })
}

func addresses(all []endpoint, want func(endpoint) bool) (out []netip.AddrPort) {
	for _, e := range all {
		if want(e) {
			out = append(out, e.at)
		}
	}
	return out
}
