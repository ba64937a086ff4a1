package gather

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/netpol"
	"wherry.dev/internal/explain"
)

// From is who wants to reach an object: a pod, or whoever has an address.
type From struct {
	Pod     Target
	Address netip.Addr
}

// ParseFrom reads pod/NAME, of the namespace, or an address.
func ParseFrom(arg, namespace string) (From, error) {
	if a, err := netip.ParseAddr(arg); err == nil {
		return From{Address: a.Unmap()}, nil
	}
	t, err := Parse(arg)
	if err != nil {
		return From{}, err
	}
	if t.Kind != "Pod" {
		return From{}, fmt.Errorf("%q: connections come from a pod (pod/NAME) or an address", arg)
	}
	t.Namespace = namespace
	return From{Pod: t}, nil
}

// Reach explains whether network policies let somebody reach a service or a pod, and which of them do not.
func Reach(ctx context.Context, client kubernetes.Interface, t Target, from From) (x explain.Explanation, err error) {
	g := &gatherer{Interface: client, Target: t, about: explain.About{Now: time.Now()}}
	if g.client, err = g.clientOf(ctx, from); err != nil {
		return x, err
	}
	switch t.Kind {
	case "Service":
		if x, err = g.service(ctx); err == nil {
			askPods(ctx, client, &x)
		}
		return x, err
	case "Pod":
		return g.reachPod(ctx)
	}
	return x, fmt.Errorf("%s/%s: only a service or a pod can be reached", t.Kind, t.Name)
}

// clientOf reads what decides what somebody may reach.
func (g *gatherer) clientOf(ctx context.Context, from From) (*explain.Client, error) {
	if from.Address.IsValid() {
		return &explain.Client{Name: "address " + from.Address.String(), Party: netpol.Party{Addresses: []netip.Addr{from.Address}}}, nil
	}
	p, err := g.CoreV1().Pods(from.Pod.Namespace).Get(ctx, from.Pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := &explain.Client{Name: "pod " + p.Name}
	if p.Namespace != g.Namespace {
		c.Name = "pod " + p.Namespace + "/" + p.Name
	}
	if p.Spec.HostNetwork {
		c.OnNode, c.Party = p.Spec.NodeName, netpol.PartyOf(p, nil)
		return c, nil
	}
	home, policies, err := g.guards(ctx, p.Namespace)
	c.Policies, c.Party = policies, netpol.PartyOf(p, home)
	return c, err
}

// guards returns the labels and the network policies of a namespace. Without these nothing can be said of
// who is let through.
func (g *gatherer) guards(ctx context.Context, namespace string) (labels.Set, []*networkingv1.NetworkPolicy, error) {
	ns, err := g.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	list, err := g.NetworkingV1().NetworkPolicies(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	return labels.Merge(nil, ns.Labels), pointers(list.Items), nil
}

func (g *gatherer) reachPod(ctx context.Context) (x explain.Explanation, err error) {
	f := explain.ReachFacts{Client: g.client}
	if f.Pod, err = g.CoreV1().Pods(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{}); err != nil {
		return x, err
	}
	if f.Home, f.Policies, err = g.guards(ctx, g.Namespace); err != nil {
		return x, err
	}
	f.About = g.about
	return explain.Reach(f), nil
}
