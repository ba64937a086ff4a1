// Package clusterdns keeps the service by which pods reach the cluster's DNS: kube-system/kube-dns, at
// the address that kubelets write into resolv.conf, and an endpoint slice for each node that answers.
//
// The name and the labels are those that other clusters have, so that network policies and dashboards
// that know them hold here. A service of that name that has a selector is somebody else's, who brings
// a DNS of their own: it is left alone, and our endpoints are withdrawn.
package clusterdns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/api/nodes"
	"wherry.dev/internal/controller"
)

const (
	// Namespace is the service's.
	Namespace = metav1.NamespaceSystem
	// Name is the service's.
	Name = "kube-dns"
	key  = Namespace + "/" + Name

	managedBy = "cluster-dns.wherry.dev"
	udp, tcp  = "dns", "dns-tcp"
)

// Config says what is published.
type Config struct {
	// IP is the service's address.
	IP netip.Addr
	// Node is the node of this process, which answers at Server. Without one there is none here: other nodes say by
	// their annotation cluster.AnnotationDNS where they answer.
	Node   string
	Server netip.AddrPort
}

// Controller keeps the service. Create one with New.
type Controller struct {
	cfg    Config
	client clientset.Interface
	nodes  corelisters.NodeLister
	slices discoverylisters.EndpointSliceLister
	loop   *controller.Loop
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory, cfg Config) (*Controller, error) {
	nodes, own := f.Core().V1().Nodes(), f.Discovery().V1().EndpointSlices()
	c := &Controller{cfg: cfg, client: client, nodes: nodes.Lister(), slices: own.Lister()}
	c.loop = controller.NewLoop("cluster-dns", c.sync)
	if err := c.loop.Watch(f.Core().V1().Services().Informer(), c.changed(func(o metav1.Object) bool { return o.GetName() == Name })); err != nil {
		return nil, err
	}
	if err := c.loop.Watch(nodes.Informer(), c.nodeChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(own.Informer(), c.changed(func(o metav1.Object) bool { return o.GetLabels()[discoveryv1.LabelManagedBy] == managedBy }))
}

// nodeChanged looks at the slices again when a node answers somewhere else, or is gone, or ready.
func (c *Controller) nodeChanged(old, obj any) {
	a, _ := old.(*v1.Node)
	b, _ := obj.(*v1.Node)
	if a != nil && b != nil {
		was, wasReady := answers(a)
		is, isReady := answers(b)
		if was == is && wasReady == isReady {
			return // most changes
		}
	}
	c.loop.Add(key)
}

// Run keeps the service until ctx ends. What it published stays: the node will be back.
func (c *Controller) Run(ctx context.Context) error {
	c.loop.Add(key)
	return c.loop.Run(ctx)
}

func (c *Controller) changed(ours func(metav1.Object) bool) func(old, obj any) {
	return func(old, obj any) {
		for _, o := range []any{old, obj} {
			if m, ok := o.(metav1.Object); ok && m.GetNamespace() == Namespace && ours(m) {
				c.loop.Add(key)
				return
			}
		}
	}
}

func sliceName(node string) string { return Name + "-" + node }

// sync reads from the API server itself: it runs a handful of times in the life of a node.
func (c *Controller) sync(ctx context.Context, _ string) error {
	mine, err := c.keepService(ctx)
	if err != nil {
		return fmt.Errorf("service %s: %w", key, err)
	}
	want, err := c.wanted()
	if err != nil {
		return err
	}
	for _, s := range want {
		if err := c.keepSlice(ctx, s, mine); err != nil {
			return fmt.Errorf("endpoint slice %s/%s: %w", Namespace, s.Name, err)
		}
	}
	return c.removeOthers(ctx, want)
}

// keepService makes the service, and reports whether it is ours.
func (c *Controller) keepService(ctx context.Context) (mine bool, err error) {
	api := c.client.CoreV1().Services(Namespace)
	have, err := api.Get(ctx, Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, c.service(), metav1.CreateOptions{})
		return true, err
	case err != nil:
		return false, err
	case len(have.Spec.Selector) > 0 || have.Spec.Type == v1.ServiceTypeExternalName:
		klog.FromContext(ctx).Info("Somebody else's DNS has the service, ours stays out of it", "service", key)
		return false, nil
	case have.Spec.ClusterIP != c.cfg.IP.String():
		// The range has changed, and a service's address cannot be changed in place.
		err := api.Delete(ctx, Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}
		_, err = api.Create(ctx, c.service(), metav1.CreateOptions{})
		return true, err
	}
	return true, nil
}

func (c *Controller) service() *v1.Service {
	ip, target := c.cfg.IP.String(), int32(53)
	if c.cfg.Server.IsValid() {
		target = int32(c.cfg.Server.Port())
	}
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: Name,
			Labels:      map[string]string{"k8s-app": Name, "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"},
			Annotations: map[string]string{"prometheus.io/scrape": "false"},
		},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			// Every node answers its own pods.
			TrafficDistribution: new(v1.ServiceTrafficDistributionPreferSameNode),
			Ports: []v1.ServicePort{
				{Name: udp, Protocol: v1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(target)},
				{Name: tcp, Protocol: v1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(target)},
			},
		},
	}
}

// wanted returns the slices of all nodes that answer.
func (c *Controller) wanted() ([]*discoveryv1.EndpointSlice, error) {
	var out []*discoveryv1.EndpointSlice
	if c.cfg.Server.IsValid() {
		out = append(out, sliceOf(c.cfg.Node, c.cfg.Server, true))
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if at, ready := answers(n); at.IsValid() && n.Name != c.cfg.Node {
			out = append(out, sliceOf(n.Name, at, ready))
		}
	}
	return out, nil
}

// answers returns where a node's DNS server is, if it has one, and whether the node is ready. A node may name an address of
// its own range, or of its own, and no other.
func answers(n *v1.Node) (at netip.AddrPort, ready bool) {
	at, err := netip.ParseAddrPort(n.Annotations[cluster.AnnotationDNS])
	if err != nil {
		return netip.AddrPort{}, false
	}
	own := slices.ContainsFunc(nodes.Ranges(n), func(p netip.Prefix) bool { return p.Contains(at.Addr()) }) || slices.ContainsFunc(n.Status.Addresses, func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP && a.Address == at.Addr().String() })
	if !own {
		return netip.AddrPort{}, false
	}
	return at, nodes.IsReady(n)
}

// removeOthers removes our slices of nodes that do not answer any more. Those of other servers' own nodes stay as long as
// the nodes are there.
func (c *Controller) removeOthers(ctx context.Context, want []*discoveryv1.EndpointSlice) error {
	have, err := c.slices.EndpointSlices(Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelManagedBy: managedBy}))
	if err != nil {
		return err
	}
	for _, s := range have {
		if slices.ContainsFunc(want, func(w *discoveryv1.EndpointSlice) bool { return w.Name == s.Name }) {
			continue
		}
		if _, err := c.nodes.Get(strings.TrimPrefix(s.Name, Name+"-")); err == nil || !apierrors.IsNotFound(err) {
			continue
		}
		err := c.client.DiscoveryV1().EndpointSlices(Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("endpoint slice %s/%s: %w", Namespace, s.Name, err)
		}
	}
	return nil
}

// keepSlice publishes a node's endpoint, or withdraws it from a service that is not ours.
func (c *Controller) keepSlice(ctx context.Context, want *discoveryv1.EndpointSlice, mine bool) error {
	api := c.client.DiscoveryV1().EndpointSlices(Namespace)
	have, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !mine:
		return nil
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	case !mine:
		err := api.Delete(ctx, want.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	case have.AddressType != want.AddressType: // it cannot be changed
		if err := api.Delete(ctx, want.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
		return err
	case equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
		equality.Semantic.DeepDerivative(want.Labels, have.Labels):
		return nil
	}
	next := have.DeepCopy()
	next.Endpoints, next.Ports = want.Endpoints, want.Ports
	for k, v := range want.Labels {
		metav1.SetMetaDataLabel(&next.ObjectMeta, k, v)
	}
	_, err = api.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// sliceOf returns what is published of a node that answers at an address.
func sliceOf(node string, at netip.AddrPort, ready bool) *discoveryv1.EndpointSlice {
	family, port := discoveryv1.AddressTypeIPv4, int32(at.Port())
	if at.Addr().Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: sliceName(node),
			Labels: map[string]string{discoveryv1.LabelServiceName: Name, discoveryv1.LabelManagedBy: managedBy},
		},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{at.Addr().String()}, NodeName: new(node),
			Conditions: discoveryv1.EndpointConditions{Ready: new(ready), Serving: new(ready), Terminating: new(false)},
			Hints:      &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}},
		}},
		Ports: []discoveryv1.EndpointPort{
			{Name: new(udp), Protocol: new(v1.ProtocolUDP), Port: new(port)},
			{Name: new(tcp), Protocol: new(v1.ProtocolTCP), Port: new(port)},
		},
	}
}
