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

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

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
	// Node is the node that answers at Server.
	Node   string
	Server netip.AddrPort
}

// Controller keeps the service. Create one with New.
type Controller struct {
	cfg    Config
	client clientset.Interface
	loop   *controller.Loop
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory, cfg Config) (*Controller, error) {
	c := &Controller{cfg: cfg, client: client}
	c.loop = controller.NewLoop("cluster-dns", c.sync)
	if err := c.loop.Watch(f.Core().V1().Services().Informer(), c.changed(func(o metav1.Object) bool { return o.GetName() == Name })); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(f.Discovery().V1().EndpointSlices().Informer(), c.changed(func(o metav1.Object) bool { return o.GetName() == c.sliceName() }))
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

func (c *Controller) sliceName() string { return Name + "-" + c.cfg.Node }

// sync reads from the API server itself: it runs a handful of times in the life of a node.
func (c *Controller) sync(ctx context.Context, _ string) error {
	mine, err := c.keepService(ctx)
	if err != nil {
		return fmt.Errorf("service %s: %w", key, err)
	}
	if err := c.keepSlice(ctx, mine); err != nil {
		return fmt.Errorf("endpoint slice %s/%s: %w", Namespace, c.sliceName(), err)
	}
	return nil
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
	ip := c.cfg.IP.String()
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
				{Name: udp, Protocol: v1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(int32(c.cfg.Server.Port()))},
				{Name: tcp, Protocol: v1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(int32(c.cfg.Server.Port()))},
			},
		},
	}
}

// keepSlice publishes the node's endpoint, or withdraws it from a service that is not ours.
func (c *Controller) keepSlice(ctx context.Context, mine bool) error {
	api := c.client.DiscoveryV1().EndpointSlices(Namespace)
	want := c.slice()
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

func (c *Controller) slice() *discoveryv1.EndpointSlice {
	family, port := discoveryv1.AddressTypeIPv4, int32(c.cfg.Server.Port())
	if c.cfg.Server.Addr().Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: c.sliceName(),
			Labels: map[string]string{discoveryv1.LabelServiceName: Name, discoveryv1.LabelManagedBy: managedBy},
		},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{c.cfg.Server.Addr().String()}, NodeName: new(c.cfg.Node),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			Hints:      &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: c.cfg.Node}}},
		}},
		Ports: []discoveryv1.EndpointPort{
			{Name: new(udp), Protocol: new(v1.ProtocolUDP), Port: new(port)},
			{Name: new(tcp), Protocol: new(v1.ProtocolTCP), Port: new(port)},
		},
	}
}
