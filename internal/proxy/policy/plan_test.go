package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const ingress, egress = networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress

// pod returns a running pod of node n in namespace default, with its name as the label app.
func pod(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{NodeName: "n", Containers: []v1.Container{{Ports: []v1.ContainerPort{
			{Name: "web", ContainerPort: 80, Protocol: v1.ProtocolTCP}, {Name: "dns", ContainerPort: 53, Protocol: v1.ProtocolUDP}}}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: podIP(name), PodIPs: []v1.PodIP{{IP: podIP(name)}, {IP: podIP6(name)}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func in(namespace string) func(*v1.Pod) { return func(p *v1.Pod) { p.Namespace = namespace } }
func elsewhere(p *v1.Pod)               { p.Spec.NodeName = "m" }
func ended(p *v1.Pod)                   { p.Status.Phase = v1.PodSucceeded }
func onHost(p *v1.Pod)                  { p.Spec.HostNetwork = true }
func web(port int32) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = port }
}
func born(s int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Unix(s, 0)) }
}
func at(name string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Status.PodIPs, p.Status.PodIP = nil, podIP(name) }
}
func sidecar(port int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{RestartPolicy: new(v1.ContainerRestartPolicyAlways),
			Ports: []v1.ContainerPort{{Name: "side", ContainerPort: port, Protocol: v1.ProtocolTCP}}}}
	}
}

func facts(all ...*v1.Pod) *Facts {
	return &Facts{Node: "n", Pods: all, Namespaces: map[string]labels.Set{
		"default": {"team": "x"}, "other": {"team": "y"}, "third": {"team": "y", "env": "prod"}}}
}

type spec = networkingv1.NetworkPolicySpec

func policy(name string, change ...func(*spec)) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	for _, f := range change {
		f(&np.Spec)
	}
	return np
}

func app(name string) metav1.LabelSelector {
	if name == "" {
		return metav1.LabelSelector{}
	}
	return metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

func on(name string) func(*spec) { return func(s *spec) { s.PodSelector = app(name) } }
func isolates(types ...Direction) func(*spec) {
	return func(s *spec) { s.PolicyTypes = types }
}

type (
	who    = networkingv1.NetworkPolicyPeer
	access = networkingv1.NetworkPolicyPort
)

func from(peers ...who) func(*spec) { return fromOn(nil, peers...) }
func to(peers ...who) func(*spec)   { return toOn(nil, peers...) }
func fromOn(list []access, peers ...who) func(*spec) {
	return func(s *spec) {
		s.Ingress = append(s.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers, Ports: list})
	}
}
func toOn(list []access, peers ...who) func(*spec) {
	return func(s *spec) {
		s.PolicyTypes = []Direction{egress}
		s.Egress = append(s.Egress, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: list})
	}
}

func pods0(name string) who { return who{PodSelector: new(app(name))} }
func team(name string) who {
	return who{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": name}}}
}
func both(a, b who) who {
	return who{PodSelector: a.PodSelector, NamespaceSelector: b.NamespaceSelector}
}
func cidr(s string, except ...string) who {
	return who{IPBlock: &networkingv1.IPBlock{CIDR: s, Except: except}}
}

func access1(p v1.Protocol, port any, end int32) access {
	out := access{Protocol: &p}
	switch n := port.(type) {
	case int:
		out.Port = new(intstr.FromInt32(int32(n)))
	case string:
		out.Port = new(intstr.FromString(n))
	}
	if end > 0 {
		out.EndPort = &end
	}
	return out
}

func port80(p v1.Protocol) []access { return []access{access1(p, 80, 0)} }

// show writes what a direction allows a pod, in IPv4.
func show(p *Plan, d Direction, name string) string {
	class, ok := p.Isolated[d][netip.MustParseAddr(podIP(name))]
	if !ok {
		return "not isolated"
	}
	var out []string
	for _, o := range p.Classes[d][class] {
		if !o.First.Is4() {
			continue
		}
		s := o.First.String()
		if o.Last != o.First {
			s += "-" + o.Last.String()
		}
		if !o.ports.All {
			for _, r := range o.ports.Ranges {
				s += fmt.Sprintf(" %s/%d-%d", strings.ToLower(string(r.Protocol)), r.First, r.Last)
			}
		}
		out = append(out, s)
	}
	return cmp.Or(strings.Join(out, ", "), "nobody")
}

func TestPlan(t *testing.T) {
	const everyone = "0.0.0.0-255.255.255.255"
	tcp, udp := v1.ProtocolTCP, v1.ProtocolUDP
	// Addresses: a is 10.244.0.10, b .11, c .12, d .13 and so on.
	cluster := []*v1.Pod{pod("a"), pod("b"), pod("c", in("other")), pod("d", in("third"), elsewhere, web(8080)),
		pod("e", in("third"), ended), pod("f", onHost)}
	with := func(more ...*v1.Pod) []*v1.Pod { return append(slices.Clone(cluster), more...) }
	for _, c := range []struct {
		name            string
		pods            []*v1.Pod
		policies        []*networkingv1.NetworkPolicy
		ingress, egress string // of a
	}{
		{"no policy", nil, nil, "not isolated", "not isolated"},
		{"of another namespace", nil, []*networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "other"}}}, "not isolated", "not isolated"},
		{"of another pod", nil, []*networkingv1.NetworkPolicy{policy("x", on("b"))}, "not isolated", "not isolated"},
		{"types by default: without egress rules", nil, []*networkingv1.NetworkPolicy{policy("x")}, "nobody", "not isolated"},
		{"types by default: with them", nil, []*networkingv1.NetworkPolicy{policy("x", to(pods0("b")), isolates())}, "nobody", "10.244.0.11"},
		{"egress only", nil, []*networkingv1.NetworkPolicy{policy("x", isolates(egress))}, "not isolated", "nobody"},
		{"rules of a direction that is not isolated", nil, []*networkingv1.NetworkPolicy{policy("x", from(), isolates(egress))}, "not isolated", "nobody"},
		{"a rule for everybody", nil, []*networkingv1.NetworkPolicy{policy("x", from())}, everyone, "not isolated"},
		{"for everybody on a port", nil, []*networkingv1.NetworkPolicy{policy("x", fromOn(port80(tcp)))}, everyone + " tcp/80-80", "not isolated"},
		{"pods of the namespace", nil, []*networkingv1.NetworkPolicy{policy("x", from(pods0("")))}, "10.244.0.10-10.244.0.11", "not isolated"},
		{"a label that only others have", nil, []*networkingv1.NetworkPolicy{policy("x", from(pods0("c")))}, "nobody", "not isolated"},
		{"a label that nobody has", nil, []*networkingv1.NetworkPolicy{policy("x", from(pods0("zz")))}, "nobody", "not isolated"},
		{"namespaces", nil, []*networkingv1.NetworkPolicy{policy("x", from(team("y")))}, "10.244.0.12-10.244.0.13", "not isolated"},
		{"namespaces that nobody has", nil, []*networkingv1.NetworkPolicy{policy("x", from(team("zz")))}, "nobody", "not isolated"},
		{"all namespaces", nil, []*networkingv1.NetworkPolicy{policy("x", from(who{NamespaceSelector: &metav1.LabelSelector{}}))}, "10.244.0.10-10.244.0.13", "not isolated"},
		{"both", nil, []*networkingv1.NetworkPolicy{policy("x", from(both(pods0("d"), team("y"))))}, "10.244.0.13", "not isolated"},
		{"one or the other", nil, []*networkingv1.NetworkPolicy{policy("x", from(pods0("b"), team("y")))}, "10.244.0.11-10.244.0.13", "not isolated"},
		{"a namespace that is not known yet", with(pod("g", in("new"))), []*networkingv1.NetworkPolicy{policy("x", from(both(pods0("g"), who{NamespaceSelector: &metav1.LabelSelector{}})))}, "nobody", "not isolated"},
		{"ended, and on the host", nil, []*networkingv1.NetworkPolicy{policy("x", from(both(pods0("e"), team("y")), pods0("f")))}, "nobody", "not isolated"},
		{"a block", nil, []*networkingv1.NetworkPolicy{policy("x", from(cidr("10.0.0.0/8", "10.244.0.0/16", "10.0.0.0/9")))}, "10.128.0.0-10.243.255.255, 10.245.0.0-10.255.255.255", "not isolated"},
		{"an exception, and a pod in it", nil, []*networkingv1.NetworkPolicy{policy("x", from(cidr("10.244.0.0/24", "10.244.0.8/29"), pods0("b")))},
			"10.244.0.0-10.244.0.7, 10.244.0.11, 10.244.0.16-10.244.0.255", "not isolated"},
		{"an exception that is none", nil, []*networkingv1.NetworkPolicy{policy("x", from(cidr("10.0.0.0/8", "bad")))}, "nobody", "not isolated"},
		{"a block that is none", nil, []*networkingv1.NetworkPolicy{policy("x", from(cidr("10.0.0.0/99"), pods0("b")))}, "10.244.0.11", "not isolated"},
		{"policies add up", nil, []*networkingv1.NetworkPolicy{policy("x", from(pods0("b"))), policy("y", from(team("y"))), policy("z")},
			"10.244.0.11-10.244.0.13", "not isolated"},
		{"ports overlap", nil, []*networkingv1.NetworkPolicy{policy("x", fromOn([]access{access1(tcp, 80, 90), access1(tcp, 85, 100), access1(tcp, 101, 0), access1(udp, 53, 0)}, pods0("b")))},
			"10.244.0.11 tcp/80-101 udp/53-53", "not isolated"},
		{"peers overlap", nil, []*networkingv1.NetworkPolicy{policy("x", fromOn(port80(tcp), cidr("10.244.0.0/24"))), policy("y", fromOn(port80(udp), pods0("b"))), policy("z", from(pods0("a")))},
			"10.244.0.0-10.244.0.9 tcp/80-80, 10.244.0.10, 10.244.0.11 tcp/80-80 udp/80-80, 10.244.0.12-10.244.0.255 tcp/80-80", "not isolated"},
		{"all ports of a protocol", nil, []*networkingv1.NetworkPolicy{policy("x", fromOn([]access{access1(v1.ProtocolSCTP, nil, 0)}, pods0("b")))}, "10.244.0.11 sctp/0-65535", "not isolated"},
		{"TCP by default", nil, []*networkingv1.NetworkPolicy{policy("x", fromOn([]access{{Port: new(intstr.FromInt32(80))}}, pods0("b")))}, "10.244.0.11 tcp/80-80", "not isolated"},
		{"a named port", nil, []*networkingv1.NetworkPolicy{policy("x", fromOn([]access{access1(tcp, "web", 0)}, pods0("b")))}, "10.244.0.11 tcp/80-80", "not isolated"},
		{"of another protocol", nil, []*networkingv1.NetworkPolicy{policy("x", fromOn([]access{access1(tcp, "dns", 0)}, pods0("b")))}, "nobody", "not isolated"},
		{"that nobody has", nil, []*networkingv1.NetworkPolicy{policy("x", fromOn([]access{access1(tcp, "zz", 0)}, pods0("b")))}, "nobody", "not isolated"},
		{"of a sidecar", []*v1.Pod{pod("a", sidecar(99)), pod("b")}, []*networkingv1.NetworkPolicy{policy("x", fromOn([]access{access1(tcp, "side", 0)}, pods0("b")))}, "10.244.0.11 tcp/99-99", "not isolated"},
		{"to a named port", nil, []*networkingv1.NetworkPolicy{policy("x", toOn([]access{access1(tcp, "web", 0), access1(udp, 53, 0)}, pods0("b"), team("y"), cidr("1.1.1.1/32")))},
			"not isolated", "1.1.1.1 udp/53-53, 10.244.0.11-10.244.0.12 tcp/80-80 udp/53-53, 10.244.0.13 tcp/8080-8080 udp/53-53"},
		{"to a named port of everybody", nil, []*networkingv1.NetworkPolicy{policy("x", toOn([]access{access1(tcp, "web", 0)}))},
			"not isolated", "10.244.0.10-10.244.0.12 tcp/80-80, 10.244.0.13 tcp/8080-8080"},
		{"the younger pod has the address", []*v1.Pod{pod("a"), pod("b", born(1), at("g")), pod("h", born(2), at("g"))}, []*networkingv1.NetworkPolicy{policy("x", from(pods0("b")))}, "nobody", "not isolated"},
		{"a selector that is wrong", nil, []*networkingv1.NetworkPolicy{policy("x", from(who{PodSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Bad"}}}}))}, "nobody", "not isolated"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.pods == nil {
				c.pods = cluster
			}
			f := facts(c.pods...)
			f.Policies = c.policies
			p := NewPlan(f)
			if got := show(&p, ingress, "a"); got != c.ingress {
				t.Errorf("ingress: %s\n   want: %s", got, c.ingress)
			}
			if got := show(&p, egress, "a"); got != c.egress {
				t.Errorf("egress: %s\n  want: %s", got, c.egress)
			}
		})
	}
}

func TestClasses(t *testing.T) {
	f := facts(pod("a"), pod("b"), pod("c", web(8080)), pod("d", elsewhere), pod("e", onHost), pod("g", ended))
	f.Policies = []*networkingv1.NetworkPolicy{policy("x", fromOn([]access{access1(v1.ProtocolTCP, "web", 0)}))}
	p := NewPlan(f)
	of := func(name string) string { return p.Isolated[ingress][netip.MustParseAddr(podIP(name))] }
	if of("a") == "" || of("a") != of("b") {
		t.Errorf("pods that are alike: %q, %q", of("a"), of("b"))
	}
	if of("c") == "" || of("c") == of("a") {
		t.Errorf("names that mean other ports: %q, %q", of("a"), of("c"))
	}
	for _, name := range []string{"d", "e", "g"} {
		if of(name) != "" {
			t.Errorf("%s is isolated here", name)
		}
	}
	if len(p.Classes[ingress]) != 2 {
		t.Errorf("classes: %v", p.Classes)
	}
}

// A class keeps its number while there is one, so that what stays is not written again.
func TestOnlyWhatIsNewIsWritten(t *testing.T) {
	f := facts(pod("a"), pod("b"))
	f.Policies = []*networkingv1.NetworkPolicy{policy("m", on("a"), from(pods0("")))}
	var n numbers
	p := NewPlan(f)
	before := n.content(&p).elements
	f.Policies = append(f.Policies, policy("l", on("b")))
	p = NewPlan(f)
	now := n.content(&p).elements
	if gone := before.without(now); len(gone) != 0 {
		t.Errorf("taken out: %v", gone)
	}
	if more := now.without(before); len(more) != 4 { // b's class and itself, in two families
		t.Errorf("added: %v", more)
	}
}
