package explain

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/netpol"
	"wherry.dev/internal/api/report"
)

// Client is who wants to reach a pod or a service.
type Client struct {
	// Name as text has it: "pod a", "address 10.0.0.1".
	Name string
	netpol.Party
	// OnNode is the node on whose network the client is, if it is on one.
	OnNode string
	// Policies of the client's namespace.
	Policies []*networkingv1.NetworkPolicy
}

// guarded are pods with what stands before them.
type guarded struct {
	pods     []*v1.Pod
	home     labels.Set // labels of their namespace
	policies []*networkingv1.NetworkPolicy
}

// attempt is a port that somebody wants to reach; a pod has it under a number, or not at all.
type attempt struct {
	text     string
	protocol v1.Protocol
	number   func(*v1.Pod) (uint16, bool)
}

// denial is a policy's no.
type denial struct {
	direction netpol.Direction
	policy    string
	lack      netpol.Lack
}

// refusals says which policies keep a client from a pod; none, if it gets through. What a node sends to
// its own pods is not judged.
func (c *Client) refusals(pod *v1.Pod, g *guarded, protocol v1.Protocol, port uint16) (out []denial) {
	want := &netpol.Connection{From: c.Party, To: netpol.PartyOf(pod, g.home), Protocol: protocol, Port: port}
	out = no(networkingv1.PolicyTypeEgress, c.Policies, want)
	if c.OnNode == "" || c.OnNode != pod.Spec.NodeName {
		out = append(out, no(networkingv1.PolicyTypeIngress, g.policies, want)...)
	}
	return out
}

func no(d netpol.Direction, policies []*networkingv1.NetworkPolicy, want *netpol.Connection) (out []denial) {
	v := netpol.Judge(d, policies, want)
	if v.Passes() {
		return nil
	}
	for _, np := range v.Isolating {
		out = append(out, denial{d, np.Name, v.Lacks[np.Name]})
	}
	return out
}

// reach explains an attempt of the client at the pods, and returns how many of them refuse it.
func (e *findings) reach(c *Client, g *guarded, a *attempt) (w report.Wait, refusing int) {
	var by []denial
	var pods []*v1.Pod
	for _, pod := range g.pods {
		port, has := a.number(pod)
		if !has {
			continue
		}
		if its := c.refusals(pod, g, a.protocol, port); len(its) > 0 {
			by, pods = append(by, its...), append(pods, pod)
		}
	}
	if len(pods) == 0 {
		return w, 0
	}
	slices.SortFunc(by, func(x, y denial) int { return strings.Compare(x.said(), y.said()) })
	by = slices.Compact(by)
	return report.Wait{
		Step: fmt.Sprintf("%s is refused at port %s of %s", c.Name, a.text, named(pods)),
		Said: saidBy(by), Next: nextOf(by, c),
	}, len(pods)
}

func (r denial) said() string {
	whom := "the pod"
	if r.direction == networkingv1.PolicyTypeEgress {
		whom = "the client"
	}
	return fmt.Sprintf("policy %s selects %s, and its %s does not allow it: %s", r.policy, whom, strings.ToLower(string(r.direction)), r.lack)
}

func saidBy(by []denial) string {
	var out []string
	for _, r := range by {
		out = append(out, r.said())
	}
	return strings.Join(out, "; ")
}

// nextOf says what would let the client through: one rule in each direction that refuses.
func nextOf(by []denial, c *Client) string {
	var out []string
	for _, d := range []netpol.Direction{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress} {
		if !slices.ContainsFunc(by, func(r denial) bool { return r.direction == d }) {
			continue
		}
		if d == networkingv1.PolicyTypeEgress {
			out = append(out, "a policy of the client has an egress rule for these pods with the port")
			continue
		}
		out = append(out, fmt.Sprintf("a policy has an ingress rule for %s with the port", c.Name))
	}
	return strings.Join(out, ", and ")
}

// policies explains ports of the service that network policies shut: for the client, if there is one, or
// for everybody.
func (e *serving) policies(live []*v1.Pod) {
	g := &guarded{pods: live, home: e.Home, policies: e.Policies}
	for _, p := range e.Service.Spec.Ports {
		a := attemptAt(p)
		if e.Client == nil {
			e.shut(g, a)
			continue
		}
		switch w, refusing := e.reach(e.Client, g, a); {
		case refusing == len(live):
			e.wait(w)
		case refusing > 0:
			e.doubts = append(e.doubts, w)
		default:
			e.note("network policies let %s through to port %s", e.Client.Name, a.text)
		}
	}
}

// attemptAt returns a port of a service: connections are judged behind it, at the pods.
func attemptAt(p v1.ServicePort) *attempt {
	target, proto := targetOf(p), protocol(p.Protocol)
	return &attempt{portText(p), proto, func(pod *v1.Pod) (uint16, bool) {
		if number, ok := resolve(target, proto, pod); ok {
			return uint16(number), true
		}
		return uint16(target.IntVal), target.Type == intstr.Int
	}}
}

// shut explains a port that no policy opens for anybody, and notes for whom a port is open that is not
// open for everybody.
func (e *serving) shut(g *guarded, a *attempt) {
	var denied []*v1.Pod
	var by, open []string
	for _, pod := range g.pods {
		port, has := a.number(pod)
		if !has {
			continue
		}
		names, to := doors(g.policies, pod, a.protocol, port)
		if len(names) > 0 && len(to) == 0 {
			denied, by = append(denied, pod), append(by, names...)
		}
		open = append(open, to...)
	}
	if open = unique(open); len(open) > 0 && !slices.Contains(open, everybody) {
		e.note("network policies open port %s for %s alone; --from pod/NAME says whether that is so for a client", a.text, strings.Join(open, "; "))
	}
	if len(denied) == 0 {
		return
	}
	e.doubts = append(e.doubts, report.Wait{
		Step: fmt.Sprintf("port %s may be denied by policy %s", a.text, listed(unique(by))),
		Said: fmt.Sprintf("network policies select %s, and none of their rules allows the port", named(denied)),
		Next: "a policy has an ingress rule that allows the port",
	})
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

const everybody = "everybody"

// doors returns the policies that isolate a pod, and for whom, in words, their rules open a port.
func doors(policies []*networkingv1.NetworkPolicy, pod *v1.Pod, proto v1.Protocol, port uint16) (isolating, open []string) {
	for _, np := range policies {
		if !netpol.Applies(&np.Spec, networkingv1.PolicyTypeIngress) || pod.Spec.HostNetwork ||
			!netpol.Selector(&np.Spec.PodSelector).Matches(labels.Set(pod.Labels)) {
			continue
		}
		isolating = append(isolating, np.Name)
		for _, r := range np.Spec.Ingress {
			if netpol.PortsOf(r.Ports, pod).Has(proto, port) {
				open = append(open, peersText(r.From))
			}
		}
	}
	return isolating, open
}

// peersText says whom a rule is about.
func peersText(peers []networkingv1.NetworkPolicyPeer) string {
	if len(peers) == 0 {
		return everybody
	}
	var out []string
	for i := range peers {
		out = append(out, peerText(&peers[i]))
	}
	return listed(out)
}

func peerText(p *networkingv1.NetworkPolicyPeer) string {
	if p.IPBlock != nil {
		if len(p.IPBlock.Except) > 0 {
			return p.IPBlock.CIDR + " without " + listed(p.IPBlock.Except)
		}
		return p.IPBlock.CIDR
	}
	text := "pods"
	if p.PodSelector != nil && !emptySelector(p.PodSelector) {
		text += " " + metav1.FormatLabelSelector(p.PodSelector)
	}
	switch {
	case p.NamespaceSelector == nil:
		return text + " of this namespace"
	case emptySelector(p.NamespaceSelector):
		return text + " of all namespaces"
	}
	return text + " of namespaces " + metav1.FormatLabelSelector(p.NamespaceSelector)
}

func emptySelector(s *metav1.LabelSelector) bool {
	return len(s.MatchLabels)+len(s.MatchExpressions) == 0
}

// ReachFacts is what is known about a pod that a client wants to reach.
type ReachFacts struct {
	About
	Pod      *v1.Pod
	Home     labels.Set // labels of its namespace
	Policies []*networkingv1.NetworkPolicy
	Client   *Client
}

// Reach explains which of the pod's ports network policies open for a client.
func Reach(f ReachFacts) Explanation {
	e := newFindings("Pod", f.Pod, f.About)
	e.out.Node, e.out.State = f.Pod.Spec.NodeName, string(f.Pod.Status.Phase)
	if f.Pod.Spec.HostNetwork {
		e.out.Summary = "It is on its node's network: network policies do not apply to it."
		return e.out
	}
	g := &guarded{pods: []*v1.Pod{f.Pod}, home: f.Home, policies: f.Policies}
	var open []string
	for _, a := range portsOf(f.Pod) {
		if w, refusing := e.reach(f.Client, g, a); refusing > 0 {
			e.wait(w)
		} else {
			open = append(open, a.text)
		}
	}
	switch {
	case len(open) == 0 && len(e.out.Waits) == 0:
		e.out.Summary = "It declares no port; a service that leads to one can be asked: svc/NAME --from."
	case len(e.out.Waits) == 0:
		e.out.Summary = fmt.Sprintf("Network policies let %s through, to port %s.", f.Client.Name, listed(open))
	case len(open) == 0:
		e.out.Summary = fmt.Sprintf("Network policies let %s through to none of its ports.", f.Client.Name)
	default:
		e.out.Summary = fmt.Sprintf("Network policies let %s through to port %s only.", f.Client.Name, listed(open))
	}
	return e.out
}

// portsOf returns the ports that a pod's containers declare.
func portsOf(p *v1.Pod) (out []*attempt) {
	for _, c := range serves(p) {
		for _, cp := range c.Ports {
			proto := protocol(cp.Protocol)
			out = append(out, &attempt{fmt.Sprintf("%d/%s", cp.ContainerPort, proto), proto,
				func(*v1.Pod) (uint16, bool) { return uint16(cp.ContainerPort), true }})
		}
	}
	return out
}
