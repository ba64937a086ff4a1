package explain

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/netpol"
)

type who = networkingv1.NetworkPolicyPeer

func byPods(app string) who {
	return who{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}
}

func byTeam(team string) who {
	return who{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": team}}}
}

func block(cidr string, except ...string) who {
	return who{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
}

// admits is a policy for all pods of namespace ns: port 8080 to 8090 from the peers.
func admits(name string, peers ...who) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: meta(name), Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
		From: peers, Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(8080)), EndPort: new(int32(8090))}},
	}}}}
}

// sends is policy out for all pods of namespace ns: they may send to the peers' port named http.
func sends(peers ...who) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: meta("out"), Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress: []networkingv1.NetworkPolicyEgressRule{{
			To: peers, Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("http"))}},
		}},
	}}
}

func guardedBy(policies ...*networkingv1.NetworkPolicy) serviceChange {
	return func(f *ServiceFacts) { f.Policies, f.Home = policies, labels.Set{"team": "x"} }
}

// askedBy is a client pod with the label app=client, in namespace ns of team x.
func askedBy(change ...func(*Client)) serviceChange {
	p := podOf("w", "client", labelled("app", "client"))
	p.Status.PodIP = "10.244.0.9"
	c := &Client{Name: "pod client", Party: netpol.PartyOf(p, labels.Set{"team": "x"})}
	for _, f := range change {
		f(c)
	}
	return func(f *ServiceFacts) { f.Client = c }
}

func held(policies ...*networkingv1.NetworkPolicy) func(*Client) {
	return func(c *Client) { c.Policies = policies }
}

func outside(addr string) func(*Client) {
	return func(c *Client) {
		c.Name, c.Party = "address "+addr, netpol.Party{Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
	}
}

func onNode(name string) func(*Client) {
	return func(c *Client) { outside("192.0.2.1")(c); c.OnNode = name }
}

func TestServiceForAClient(t *testing.T) {
	http := port(8080, v1.ProtocolTCP)
	server := podOf("w", "a", http, func(p *v1.Pod) { p.Spec.NodeName = "n" })
	one := []*v1.Pod{server}
	const through, refused = "note: network policies let pod client through to port 80/TCP → http", "It has ready endpoints, but not all of it answers: pod client is refused at port 80/TCP → http of pod a."
	nothing := &networkingv1.NetworkPolicy{ObjectMeta: meta("deny-all")}
	check(t, map[string]told{
		"no policy":        {x: service(one, askedBy()), want: []string{"It answers", through}},
		"let in by label":  {x: service(one, guardedBy(nothing, admits("p", byPods("client"))), askedBy()), want: []string{"It answers", through}},
		"no rule":          {x: service(one, guardedBy(nothing), askedBy()), want: []string{refused, "policy deny-all selects the pod, and its ingress does not allow it: it has no rule", "an ingress rule for pod client with the port"}},
		"other pods":       {x: service(one, guardedBy(admits("p", byPods("friend"))), askedBy()), want: []string{refused, "policy p selects the pod, and its ingress does not allow it: its rules for the port are for others"}},
		"other port":       {x: service([]*v1.Pod{podOf("w", "a", port(8091, v1.ProtocolTCP))}, guardedBy(admits("p", byPods("client"))), askedBy()), want: []string{refused, "its rules for the peer are for other ports"}},
		"last port":        {x: service([]*v1.Pod{podOf("w", "a", port(8090, v1.ProtocolTCP))}, guardedBy(admits("p", byPods("client"))), askedBy()), want: []string{through}},
		"namespace":        {x: service(one, guardedBy(admits("p", byTeam("x"))), askedBy()), want: []string{through}},
		"other namespaces": {x: service(one, guardedBy(admits("p", byTeam("y"))), askedBy()), want: []string{refused}},
		"block":            {x: service(one, guardedBy(admits("p", block("10.244.0.0/16"))), askedBy()), want: []string{through}},
		"exception":        {x: service(one, guardedBy(admits("p", block("10.244.0.0/16", "10.244.0.8/29"))), askedBy()), want: []string{refused}},
		"outside":          {x: service(one, guardedBy(admits("p", block("192.0.2.0/24"))), askedBy(outside("192.0.2.7"))), want: []string{"let address 192.0.2.7 through"}},
		"labels outside":   {x: service(one, guardedBy(admits("p", byTeam("x"))), askedBy(outside("10.244.0.9"))), want: []string{"address 10.244.0.9 is refused"}},
		"its own node":     {x: service(one, guardedBy(nothing), askedBy(onNode("n"))), want: []string{"let address 192.0.2.1 through"}},
		"another node":     {x: service(one, guardedBy(nothing), askedBy(onNode("m"))), want: []string{"address 192.0.2.1 is refused"}},
		"may not send": {x: service(one, askedBy(held(sends(byTeam("y"))))),
			want: []string{refused, "policy out selects the client, and its egress does not allow it: its rules for the port are for others", "an egress rule for these pods with the port"}},
		"may send to the named port": {x: service(one, guardedBy(), askedBy(held(sends(byTeam("x"))))), want: []string{through}},
		"neither way":                {x: service(one, guardedBy(nothing), askedBy(held(sends()), held(sends(byPods("db"))))), want: []string{"policy deny-all selects the pod", "policy out selects the client", ", and a policy has an ingress rule"}},
		"one of two": {x: service([]*v1.Pod{server, podOf("w", "b", http, labelled("tier", "front"))}, guardedBy(&networkingv1.NetworkPolicy{ObjectMeta: meta("tier"), Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "front"}}}}), askedBy()), want: []string{"It has 2 ready endpoints, but not all may be well: pod client is refused at port 80/TCP → http of pod b."}},
	})
}

// Without a client, it is said for whom the port is open.
func TestForWhomAPortIsOpen(t *testing.T) {
	one := []*v1.Pod{podOf("w", "a", port(8080, v1.ProtocolTCP))}
	both := byPods("client")
	both.NamespaceSelector = &metav1.LabelSelector{}
	check(t, map[string]told{
		"everybody": {x: service(one, guardedBy(admits("p"), admits("q", byPods("a")))), lacks: "alone", want: []string{"It answers"}},
		"some": {x: service(one, guardedBy(admits("p", byPods("client"), byTeam("x"), block("10.0.0.0/8", "10.1.0.0/16")), admits("q", both))), want: []string{
			"open port 80/TCP → http for pods app=client of all namespaces; pods app=client of this namespace, pods of namespaces team=x, 10.0.0.0/8 without 10.1.0.0/16 alone"}},
	})
}

func TestReach(t *testing.T) {
	both := func(p *v1.Pod) {
		p.Spec.Containers = []v1.Container{{Name: "c", Ports: []v1.ContainerPort{{ContainerPort: 8080}, {ContainerPort: 9090}}}}
	}
	reach := func(change podChange, policies ...*networkingv1.NetworkPolicy) Explanation {
		f := ServiceFacts{}
		askedBy()(&f)
		return Reach(ReachFacts{About: About{Now: now}, Pod: podOf("w", "a", change), Home: labels.Set{"team": "x"}, Policies: policies, Client: f.Client})
	}
	check(t, map[string]told{
		"all":     {x: reach(both), want: []string{"pod ns/a: Running", "let pod client through, to port 8080/TCP, 9090/TCP."}},
		"one":     {x: reach(both, admits("p", byPods("client"))), want: []string{"through to port 8080/TCP only.", "pod client is refused at port 9090/TCP of pod a", "for other ports"}},
		"none":    {x: reach(both, admits("p", byPods("x"))), want: []string{"through to none of its ports"}},
		"no port": {x: reach(func(*v1.Pod) {}), want: []string{"It declares no port"}},
		"on host": {x: reach(func(p *v1.Pod) { p.Spec.HostNetwork = true }, admits("p")), want: []string{"policies do not apply"}},
	})
}
