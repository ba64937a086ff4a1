package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
)

// ServiceFacts is what is known about a Service.
type ServiceFacts struct {
	About
	Service *v1.Service
	// Pods of the namespace, all of them.
	Pods []*v1.Pod
	// Slices of the service.
	Slices []*discoveryv1.EndpointSlice
	// Home has the labels of the namespace.
	Home labels.Set
	// Policies of the namespace.
	Policies []*networkingv1.NetworkPolicy
	// Client is who wants to reach it; nil, if nobody in particular.
	Client *Client
}

// serving builds the explanation of a Service.
type serving struct {
	findings
	ServiceFacts
	selected crowd
	// ready endpoints, those that still answer while they end, and all.
	ready, leaving, all int
	// doubts are waits that need not keep the service from answering.
	doubts []report.Wait
}

// Service explains why a Service does not answer.
func Service(f ServiceFacts) Explanation {
	s := f.Service
	e := &serving{findings: newFindings("Service", s, f.About), ServiceFacts: f}
	if e.deleted(s) {
		return e.out
	}
	if s.Spec.Type == v1.ServiceTypeExternalName {
		e.external()
		return e.out
	}
	e.countEndpoints()
	e.out.State = fmt.Sprintf("%s, %d of %s ready", e.sort(), e.ready, count(e.all, "endpoint"))
	if len(s.Spec.Selector) == 0 {
		e.byHand()
	} else {
		e.bySelector()
	}
	e.balancer()
	e.summary()
	e.reached()
	return e.out
}

// sort says what sort of service it is.
func (e *serving) sort() string {
	s := e.Service.Spec
	if s.ClusterIP == v1.ClusterIPNone {
		return "headless"
	}
	return strings.TrimSpace(string(s.Type) + " " + s.ClusterIP)
}

func (e *serving) external() {
	name := e.Service.Spec.ExternalName
	e.out.State = "ExternalName " + name
	e.out.Summary = fmt.Sprintf("It is a name alone: the cluster's DNS answers %s.%s.svc with an alias of %s. Nothing is forwarded, and it has no address.",
		e.Service.Name, e.Service.Namespace, name)
	if _, err := netip.ParseAddr(name); err == nil {
		e.note("%s is an address, but an alias has to be a name: clients cannot resolve it; make a service without a selector, and an EndpointSlice", name)
	}
	if len(e.Service.Spec.Selector) > 0 {
		e.note("its selector has no effect")
	}
}

func (e *serving) countEndpoints() {
	for _, s := range e.Slices {
		for i := range s.Endpoints {
			c := s.Endpoints[i].Conditions
			e.all++
			switch serves := c.Serving == nil || *c.Serving; {
			case c.Ready == nil || *c.Ready:
				e.ready++
			case serves && c.Terminating != nil && *c.Terminating:
				e.leaving++
			}
		}
	}
}

// byHand explains a service whose endpoints somebody else writes.
func (e *serving) byHand() {
	switch {
	case e.all == 0:
		e.wait(report.Wait{
			Step: "endpoints", Said: "the service has no selector, and nobody wrote endpoints for it",
			Next: fmt.Sprintf("it gets a selector, or an EndpointSlice with the label %s=%s is created", discoveryv1.LabelServiceName, e.Service.Name),
		})
	case e.ready == 0:
		e.wait(report.Wait{
			Step: "endpoints", Said: "the service has no selector; none of the endpoints that somebody wrote is ready",
			Next: "whoever writes them says that one is",
		})
	default:
		e.note("it has no selector: its endpoints are written by somebody else")
	}
}

// bySelector explains a service whose endpoints are pods.
func (e *serving) bySelector() {
	selector := labels.SelectorFromSet(e.Service.Spec.Selector)
	var its []*v1.Pod
	for _, p := range e.Pods {
		if selector.Matches(labels.Set(p.Labels)) {
			its = append(its, p)
		}
	}
	e.selected = sort(its, 0, e.Now)
	live := slices.Concat(e.selected.available, e.selected.unready)
	switch {
	case len(its) == 0:
		e.nothing(selector)
		return
	case len(live)+len(e.selected.ending) == 0:
		e.wait(report.Wait{
			Step: "pods of selector " + selector.String(), Said: "all that it selects have ended: " + names(e.selected.ended),
			Next: "pods with these labels run",
		})
		return
	}
	e.terminating(selector)
	if len(live) > 0 {
		e.ports(live)
		e.policies(live)
	}
	e.unready()
	e.unlisted()
}

// nothing explains a selector that no pod has.
func (e *serving) nothing(selector labels.Selector) {
	w := report.Wait{
		Step: "pods of selector " + selector.String(),
		Said: fmt.Sprintf("it selects none of the %s of namespace %s", count(len(e.Pods), "pod"), e.Service.Namespace),
		Next: "a pod has these labels, or the selector names those that the pods have",
	}
	if close := near(e.Service.Spec.Selector, e.Pods); len(close) > 0 {
		w.Said += "; near are: " + strings.Join(close, "; ")
	}
	e.wait(w)
}

// terminating explains a service all of whose pods are ending.
func (e *serving) terminating(selector labels.Selector) {
	ending := e.selected.ending
	if len(ending) == 0 {
		return
	}
	if len(e.selected.available)+len(e.selected.unready) > 0 {
		e.note("pods that are ending get no new connections while others are ready: %s", names(ending))
		return
	}
	said := "all of its pods are being deleted: " + names(ending)
	if e.leaving > 0 {
		said += fmt.Sprintf("; until they have ended %s them", map[bool]string{true: "an endpoint leads to one of", false: "endpoints lead to"}[e.leaving == 1])
	}
	w := report.Wait{Step: "pods of selector " + selector.String(), Since: notReadySince(ending), Said: said, Next: "new pods with these labels are ready"}
	if e.leaving > 0 {
		e.doubts = append(e.doubts, w)
		return
	}
	e.wait(w)
}

// unready explains pods that would serve if they were ready.
func (e *serving) unready() {
	if len(e.selected.unready) == 0 {
		return
	}
	if e.Service.Spec.PublishNotReadyAddresses {
		e.note("pods that are not ready serve too (publishNotReadyAddresses): %s", names(e.selected.unready))
		return
	}
	before := len(e.out.Waits)
	e.held(e.selected.unready, ", which the service selects")
	if e.ready > 0 { // others answer
		e.doubts = append(e.doubts, e.out.Waits[before:]...)
		e.out.Waits = e.out.Waits[:before]
	}
}

// unlisted explains pods that are ready, and not among the endpoints.
func (e *serving) unlisted() {
	its := e.selected.available
	if e.Service.Spec.PublishNotReadyAddresses {
		its = slices.DeleteFunc(slices.Concat(its, e.selected.unready), func(p *v1.Pod) bool { return p.Status.PodIP == "" })
	}
	if len(its) == 0 || e.ready > 0 {
		return
	}
	e.wait(report.Wait{
		Step: "endpoint slice controller", Said: fmt.Sprintf("no endpoint is ready, but %s could be one", named(its)),
		Next: "the controller runs and writes an EndpointSlice",
	})
}

func (e *serving) balancer() {
	s := e.Service
	if s.Spec.Type != v1.ServiceTypeLoadBalancer || len(s.Status.LoadBalancer.Ingress) > 0 {
		return
	}
	w := report.Wait{
		Step: "load balancer", Since: report.When(s.CreationTimestamp.Time), Said: "it has no address yet; inside the cluster the service is reached all the same",
		Next: "a controller of load balancers gives it one",
	}
	if c := s.Spec.LoadBalancerClass; c != nil {
		w.Next = "the controller of class " + *c + " gives it one"
	}
	e.doubts = append(e.doubts, w)
}

// summary puts waits that are certain before those that are not.
func (e *serving) summary() {
	certain := len(e.out.Waits) > 0
	e.out.Waits = append(e.out.Waits, e.doubts...)
	switch {
	case certain && e.ready > 0:
		e.out.Summary = "It has ready endpoints, but not all of it answers: " + e.out.Waits[0].Step + "."
	case certain:
		e.out.Summary = "It does not answer. It waits for: " + e.out.Waits[0].Step + "."
	case e.ready == 0 && e.leaving > 0:
		e.out.Summary = "It answers for as long as its last pods take to end, and waits for: " + e.out.Waits[0].Step + "."
	case e.ready == 0 && len(e.doubts) == 0:
		e.out.Summary = "It does not answer: no pod of it has an address yet."
	case len(e.doubts) > 0:
		e.out.Summary = fmt.Sprintf("It has %s, but not all may be well: %s.", count(e.ready, "ready endpoint"), e.out.Waits[0].Step)
	default:
		e.out.Summary = fmt.Sprintf("It answers, with %s.", count(e.ready, "ready endpoint"))
	}
}

// reached notes the name and the addresses under which the service is found.
func (e *serving) reached() {
	s := e.Service
	name := s.Name + "." + s.Namespace + ".svc"
	var ports, nodePorts []string
	for _, p := range s.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, protocol(p.Protocol)))
		if p.NodePort != 0 {
			nodePorts = append(nodePorts, fmt.Sprintf("%d/%s", p.NodePort, protocol(p.Protocol)))
		}
	}
	if s.Spec.ClusterIP == v1.ClusterIPNone {
		e.note("headless: the name %s stands for the addresses of the pods themselves; clients use the target ports", name)
	} else {
		e.note("reached in the cluster as %s, at %s, port %s", name, strings.Join(addresses(s), " and "), strings.Join(ports, ", "))
	}
	if len(nodePorts) > 0 {
		e.note("reached from outside at each node's address, port %s", strings.Join(nodePorts, ", "))
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		e.note("reached through its load balancer at %s%s", in.IP, in.Hostname)
	}
	if s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal {
		e.note("internalTrafficPolicy Local: a client reaches only pods of its own node")
	}
	if s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
		e.note("externalTrafficPolicy Local: nodes without such a pod do not answer from outside")
	}
}

func addresses(s *v1.Service) []string {
	if len(s.Spec.ClusterIPs) > 0 {
		return s.Spec.ClusterIPs
	}
	return []string{s.Spec.ClusterIP}
}

func protocol(p v1.Protocol) v1.Protocol {
	if p == "" {
		return v1.ProtocolTCP
	}
	return p
}

// serves returns the containers of a pod that run as long as it does.
func serves(p *v1.Pod) []v1.Container {
	out := slices.Clone(p.Spec.Containers)
	for i := range p.Spec.InitContainers {
		if pods.IsSidecar(&p.Spec.InitContainers[i]) {
			out = append(out, p.Spec.InitContainers[i])
		}
	}
	return out
}
