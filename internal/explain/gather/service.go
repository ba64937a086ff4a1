package gather

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"wherry.dev/internal/explain"
)

func (g *gatherer) service(ctx context.Context) (x explain.Explanation, err error) {
	s, err := g.CoreV1().Services(g.Namespace).Get(ctx, g.Name, metav1.GetOptions{})
	if err != nil {
		return x, err
	}
	f := explain.ServiceFacts{Service: s}
	if f.Pods, err = g.podsOf(ctx, nil); err != nil {
		return x, err
	}
	slices, err := g.DiscoveryV1().EndpointSlices(g.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: s.Name}.String(),
	})
	if err != nil {
		return x, err
	}
	f.Slices = pointers(slices.Items)
	if err := g.policies(ctx, &f); err != nil {
		return x, err
	}
	f.About = g.on(ctx, s.UID)
	return explain.Service(f), nil
}

// policies reads the network policies before a service. For a client they are needed.
func (g *gatherer) policies(ctx context.Context, f *explain.ServiceFacts) (err error) {
	if g.client != nil {
		f.Client = g.client
		f.Home, f.Policies, err = g.guards(ctx, g.Namespace)
		return err
	}
	list, err := g.NetworkingV1().NetworkPolicies(g.Namespace).List(ctx, metav1.ListOptions{})
	if !g.unread("network policies", err) {
		f.Policies = pointers(list.Items)
	}
	return nil
}
