// Package loadbalancer gives services of type LoadBalancer the addresses of the nodes, where every
// node's proxy serves them; with externalTrafficPolicy Local, of those that have a ready endpoint. It stands in for a cloud: services that ask for somebody else's load
// balancer (loadBalancerClass) are left alone.
package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/nodes"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/written"
)

// NodePorts are TCP ports at which nodes usually are reached themselves: SSH, the kubelet, the API server.
var NodePorts = []uint16{22, 10250, 6443}

// Controller writes status.loadBalancer. Create one with New.
type Controller struct {
	client          clientset.Interface
	loop            *controller.Loop
	services, nodes cache.Indexer
	slices          discoverylisters.EndpointSliceLister
	writes          *written.Log
	reserved        []uint16
	events          record.EventRecorder
}

// New returns the controller, with the informers of f. Services that want one of the reserved TCP ports
// get no address: the nodes need these themselves.
func New(client clientset.Interface, f informers.SharedInformerFactory, reserved []uint16) (*Controller, error) {
	services, nodes := f.Core().V1().Services().Informer(), f.Core().V1().Nodes().Informer()
	endpoints := f.Discovery().V1().EndpointSlices()
	c := &Controller{
		client: client, services: services.GetIndexer(), nodes: nodes.GetIndexer(), slices: endpoints.Lister(),
		writes: written.New(services.GetIndexer()), reserved: reserved,
	}
	c.loop = controller.NewLoop("service", c.reconcile)
	c.loop.WaitFor(c.writes)
	if err := c.loop.Watch(services, c.serviceChanged); err != nil {
		return nil, err
	}
	return c, errors.Join(c.loop.Watch(nodes, c.nodeChanged), c.loop.Watch(endpoints.Informer(), c.endpointsChanged))
}

// Run writes addresses until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "service-controller")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

func (c *Controller) serviceChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if svc, ok := o.(*v1.Service); ok && svc.Spec.Type == v1.ServiceTypeLoadBalancer {
			c.loop.Add(svc.Namespace + "/" + svc.Name)
		}
	}
}

// endpointsChanged wakes the service of a slice, if it matters to it where its endpoints are.
func (c *Controller) endpointsChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		item, exists, err := c.services.GetByKey(slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName])
		if svc, ok := item.(*v1.Service); err == nil && exists && ok && staysLocal(svc) {
			c.serviceChanged(nil, svc)
		}
		return
	}
}

// staysLocal reports whether traffic from outside is served on the node that it comes to, or not at all.
func staysLocal(svc *v1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
}

// candidates returns the nodes at which a service can be reached: those that have a ready endpoint if traffic stays local, and
// all of them while there is none. A service keeps its address while its only pod is replaced.
func (c *Controller) candidates(svc *v1.Service) (all []*v1.Node, err error) {
	for _, n := range c.nodes.List() {
		all = append(all, n.(*v1.Node))
	}
	if !staysLocal(svc) {
		return all, nil
	}
	list, err := c.slices.EndpointSlices(svc.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: svc.Name}))
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, slice := range list {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.NodeName != nil && ptr.Deref(e.Conditions.Ready, true) {
				has[*e.NodeName] = true
			}
		}
	}
	local := slices.DeleteFunc(slices.Clone(all), func(n *v1.Node) bool { return !has[n.Name] })
	if len(local) == 0 {
		return all, nil
	}
	return local, nil
}

func (c *Controller) nodeChanged(old, obj any) {
	was, _ := old.(*v1.Node)
	node, _ := obj.(*v1.Node)
	if was != nil && node != nil && slices.Equal(addressesOf(was), addressesOf(node)) {
		return
	}
	for _, item := range c.services.List() {
		c.serviceChanged(nil, item)
	}
}

// addressesOf returns a node's addresses for load balancers; none if it is not ready, or excluded.
func addressesOf(n *v1.Node) (out []netip.Addr) {
	_, excluded := n.Labels[v1.LabelNodeExcludeBalancers]
	if excluded || !nodes.IsReady(n) || n.DeletionTimestamp != nil {
		return nil
	}
	for _, kind := range []v1.NodeAddressType{v1.NodeExternalIP, v1.NodeInternalIP} {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind && !ip.IsLoopback() {
				out = append(out, ip)
			}
		}
		if len(out) > 0 {
			return out // where nodes have addresses for the outside, these are the ones
		}
	}
	return nil
}

// wanted returns the addresses that a service should have: those of the nodes, in its families.
func wanted(svc *v1.Service, nodes []*v1.Node) []v1.LoadBalancerIngress {
	var ips []netip.Addr
	for _, n := range nodes {
		for _, ip := range addressesOf(n) {
			family := v1.IPv6Protocol
			if ip.Is4() {
				family = v1.IPv4Protocol
			}
			if slices.Contains(svc.Spec.IPFamilies, family) {
				ips = append(ips, ip)
			}
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	var out []v1.LoadBalancerIngress
	for _, ip := range slices.Compact(ips) {
		out = append(out, v1.LoadBalancerIngress{IP: ip.String(), IPMode: new(v1.LoadBalancerIPModeVIP)})
	}
	return out
}

// conflict returns a port of the service that is reserved, or 0.
func conflict(svc *v1.Service, reserved []uint16) int32 {
	for _, p := range svc.Spec.Ports {
		if p.Protocol == v1.ProtocolTCP && slices.Contains(reserved, uint16(p.Port)) {
			return p.Port
		}
	}
	return 0
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	item, exists, err := c.services.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		return nil
	}
	svc := item.(*v1.Service)
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer || svc.Spec.LoadBalancerClass != nil || svc.DeletionTimestamp != nil {
		return nil
	}
	nodes, err := c.candidates(svc)
	if err != nil {
		return err
	}
	want := wanted(svc, nodes)
	if port := conflict(svc, c.reserved); port != 0 {
		c.events.Eventf(svc, v1.EventTypeWarning, "SyncLoadBalancerFailed",
			"Error syncing load balancer: port %d is the nodes' own; use another port", port)
		want = nil
	}
	if equality.Semantic.DeepEqual(svc.Status.LoadBalancer.Ingress, want) {
		return nil
	}
	svc = svc.DeepCopy()
	svc.Status.LoadBalancer.Ingress = want
	got, err := c.client.CoreV1().Services(svc.Namespace).UpdateStatus(ctx, svc, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", controller.ErrBehind, err)
	case err != nil:
		return err
	}
	c.writes.Wrote(key, got)
	return nil
}
