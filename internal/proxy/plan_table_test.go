package proxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// at returns an endpoint 10.0.0.N on a node; state is r(eady), s(erving and terminating), t(erminating
// only) or n(ot ready).
func at(n int, node, state string, hints ...string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", n)}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{
		Ready: new(state == "r"), Serving: new(state == "r" || state == "s"), Terminating: new(state == "s" || state == "t"),
	}}
	for _, h := range hints {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		kind, name, _ := strings.Cut(h, ":")
		if kind == "zone" {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: name})
		} else {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: name})
		}
	}
	return e
}

// show renders rules: each frontend, where it leads, and its peculiarities.
func show(r Rules) string {
	target := func(t Target) string {
		switch t {
		case Reject:
			return "reject"
		case Drop:
			return "drop"
		}
		var out []string
		for _, e := range r.Balancers[t].Endpoints {
			out = append(out, strings.TrimPrefix(strings.TrimSuffix(e.String(), ":8080"), "10.0.0."))
		}
		return strings.Join(out, "+")
	}
	var out []string
	for _, f := range r.Frontends {
		s := fmt.Sprintf("%s→%s", netip.AddrPortFrom(f.Address, f.Port), target(f.To))
		if f.HasOutside {
			s += "|" + target(f.Outside)
		}
		s += []string{"", " masquerade", " node"}[f.Source]
		if f.Guarded {
			s += fmt.Sprint(" ", f.Allowed)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestPlan(t *testing.T) {
	node := Node{Name: "n", Zone: "z", Reserved: []uint16{6443}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("127.0.0.1")}}
	nodePort := func(s *v1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, 30080 }
	external := func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal }
	internal := func(s *v1.Service) { s.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyLocal) }
	for name, tt := range map[string]struct {
		svc       *v1.Service
		endpoints []discoveryv1.Endpoint
		want      string
	}{
		"no endpoints":             {service(), nil, "10.96.0.7:80→reject"},
		"the ready ones":           {service(), []discoveryv1.Endpoint{at(1, "n", "r"), at(2, "m", "r"), at(3, "n", "n"), at(4, "n", "s")}, "10.96.0.7:80→1+2"},
		"none is ready":            {service(), []discoveryv1.Endpoint{at(3, "n", "n"), at(4, "n", "s"), at(5, "n", "t")}, "10.96.0.7:80→4"},
		"none serves":              {service(), []discoveryv1.Endpoint{at(3, "n", "n"), at(5, "n", "t")}, "10.96.0.7:80→reject"},
		"conditions are unknown":   {service(), []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.9"}}}, "10.96.0.7:80→9"},
		"twice the same":           {service(), []discoveryv1.Endpoint{at(1, "n", "n"), at(1, "n", "r"), at(1, "n", "n")}, "10.96.0.7:80→1"},
		"an address that is none":  {service(), []discoveryv1.Endpoint{{Addresses: []string{"x"}}, {}}, "10.96.0.7:80→reject"},
		"this zone":                {service(), []discoveryv1.Endpoint{at(1, "n", "r", "zone:y"), at(2, "m", "r", "zone:z")}, "10.96.0.7:80→2"},
		"a hint is missing":        {service(), []discoveryv1.Endpoint{at(1, "n", "r"), at(2, "m", "r", "zone:z")}, "10.96.0.7:80→1+2"},
		"no hint is for us":        {service(), []discoveryv1.Endpoint{at(1, "n", "r", "zone:x"), at(2, "m", "r", "zone:y")}, "10.96.0.7:80→1+2"},
		"this node before zones":   {service(), []discoveryv1.Endpoint{at(1, "n", "r", "node:n", "zone:z"), at(2, "m", "r", "node:m", "zone:z")}, "10.96.0.7:80→1"},
		"another node, this zone":  {service(), []discoveryv1.Endpoint{at(1, "m", "r", "node:m", "zone:z"), at(2, "m", "r", "node:m", "zone:y")}, "10.96.0.7:80→1"},
		"headless":                 {service(func(s *v1.Service) { s.Spec.ClusterIP = "None" }), []discoveryv1.Endpoint{at(1, "n", "r")}, ""},
		"a name":                   {service(func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }), nil, ""},
		"somebody else's":          {service(func(s *v1.Service) { s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"} }), nil, ""},
		"node port":                {service(nodePort), []discoveryv1.Endpoint{at(1, "n", "r"), at(2, "m", "r")}, "10.96.0.7:80→1+2, 192.0.2.1:30080→1+2 masquerade"},
		"external local":           {service(nodePort, external), []discoveryv1.Endpoint{at(1, "n", "r"), at(2, "m", "r")}, "10.96.0.7:80→1+2, 192.0.2.1:30080→1+2|1 node"},
		"external local, none":     {service(nodePort, external), []discoveryv1.Endpoint{at(2, "m", "r")}, "10.96.0.7:80→2, 192.0.2.1:30080→2|drop node"},
		"external local, nobody":   {service(nodePort, external), nil, "10.96.0.7:80→reject, 192.0.2.1:30080→reject|reject node"},
		"external local, ending":   {service(nodePort, external), []discoveryv1.Endpoint{at(1, "n", "s"), at(2, "m", "r")}, "10.96.0.7:80→2, 192.0.2.1:30080→2|1 node"},
		"internal local":           {service(internal), []discoveryv1.Endpoint{at(1, "n", "r"), at(2, "m", "r")}, "10.96.0.7:80→1"},
		"internal local, none":     {service(internal), []discoveryv1.Endpoint{at(2, "m", "r")}, "10.96.0.7:80→drop"},
		"internal local, nobody":   {service(internal), nil, "10.96.0.7:80→reject"},
		"internal local, external": {service(internal, nodePort), []discoveryv1.Endpoint{at(1, "n", "r"), at(2, "m", "r")}, "10.96.0.7:80→1, 192.0.2.1:30080→1+2 masquerade"},
		"external IP":              {service(func(s *v1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.1", "2001:db8::9"} }), []discoveryv1.Endpoint{at(1, "n", "r")}, "10.96.0.7:80→1, 198.51.100.1:80→1 masquerade"},
		"the node's own ports": {service(func(s *v1.Service) { // once, a service could take the API server's place
			s.Spec.Type, s.Spec.Ports[0].Port, s.Spec.ExternalIPs = v1.ServiceTypeLoadBalancer, 6443, []string{"192.0.2.1", "127.0.0.1", "198.51.100.1"}
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "203.0.113.1"}}
		}), []discoveryv1.Endpoint{at(1, "n", "r")}, "10.96.0.7:6443→1, 198.51.100.1:6443→1 masquerade, 203.0.113.1:6443→1 masquerade"},
		"load balancer": {service(nodePort, func(s *v1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = v1.ServiceTypeLoadBalancer, []string{"10.1.0.0/16", "10.1.2.0/24", " 10.2.0.1/32"}
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "203.0.113.1"}, {IP: "203.0.113.2", IPMode: new(v1.LoadBalancerIPModeProxy)}, {Hostname: "x"}}
		}), []discoveryv1.Endpoint{at(1, "n", "r")}, "10.96.0.7:80→1, 203.0.113.1:80→1 masquerade [10.1.0.0/16 10.2.0.1/32], 192.0.2.1:30080→1 masquerade"},
	} {
		if got := show(Plan(tt.svc, slices4(tt.endpoints...), node)); got != tt.want {
			t.Errorf("%s: %s; want %s", name, got, tt.want)
		}
	}
}

// TestHealthPort: load balancers ask on a node how many ready endpoints it has.
func TestHealthPort(t *testing.T) {
	svc := service(func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal, 31000
	})
	r := Plan(svc, slices4(at(1, "n", "r"), at(2, "m", "r"), at(3, "n", "s")), Node{Name: "n"})
	if r.HealthPort != 31000 || r.LocalReady != 1 || len(r.Hairpins) != 2 {
		t.Errorf("%+v", r)
	}
}

// TestTwoServicesWantOneAddress: the first one has it, and the second gets it when the first goes.
func TestTwoServicesWantOneAddress(t *testing.T) {
	s := newState()
	plan := func(name, cluster string, n int) (string, Rules) {
		svc := service(func(s *v1.Service) {
			s.ObjectMeta = metav1.ObjectMeta{Namespace: "a", Name: name}
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.ExternalIPs = cluster, []string{cluster}, []string{"198.51.100.1"}
		})
		return "a/" + name, Plan(svc, slices4(at(n, "m", "r")), Node{Name: "n"})
	}
	leads := func(c change) (out []string) {
		for _, e := range c.add {
			if e.set == "endpoints4" && strings.HasPrefix(e.key, string([]byte{198, 51, 100, 1})) {
				out = append(out, fmt.Sprint(e.value[3]))
			}
		}
		return out
	}
	var first, second, third, last change
	name1, rules1 := plan("one", "10.96.0.1", 1)
	name2, rules2 := plan("two", "10.96.0.2", 2)
	s.set(name1, rules1, &first)
	s.set(name2, rules2, &second)
	_, moved := plan("one", "10.96.0.1", 3)
	s.set(name1, moved, &third)
	s.set(name1, Rules{}, &last)
	if got := fmt.Sprint(leads(first), leads(second), leads(third), leads(last)); got != "[1] [] [3] [2]" {
		t.Errorf("the external IP leads to %s", got)
	}
	var nothing change
	s.set(name2, Rules{}, &nothing)
	if len(s.claims) != 0 || len(s.services) != 0 {
		t.Errorf("left: %v %v", s.claims, s.services)
	}
}

// TestUnchangedServicesAreNotWritten: an event that changes nothing costs the kernel nothing.
func TestUnchangedServicesAreNotWritten(t *testing.T) {
	s := newState()
	var c change
	r := Plan(service(), slices4(at(1, "n", "r"), at(2, "n", "r")), Node{Name: "n"})
	s.set("a/web", r, &c)
	var again change
	s.set("a/web", Plan(service(), slices4(at(2, "n", "r"), at(1, "n", "r")), Node{Name: "n"}), &again)
	if len(c.add) == 0 || len(again.add)+len(again.remove) != 0 {
		t.Errorf("%d, then %d and %d", len(c.add), len(again.add), len(again.remove))
	}
}

// Upstream's spec "should implement service.kubernetes.io/headless": the service went on leading to the endpoints of such a slice.
func TestSlicesOfHeadlessServicesAreNotProxied(t *testing.T) {
	all := slices4(at(1, "n", "r"))
	if got := show(Plan(service(), all, Node{Name: "n"})); got != "10.96.0.7:80→1" {
		t.Errorf("got %s", got)
	}
	all[0].Labels = map[string]string{v1.IsHeadlessService: ""}
	if got := show(Plan(service(), all, Node{Name: "n"})); got != "10.96.0.7:80→reject" {
		t.Errorf("labelled: got %s", got)
	}
}
