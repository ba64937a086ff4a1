package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver/registry"
)

// The service through which programs in pods find us.
const (
	serviceName      = "kubernetes"
	servicePort      = 443
	servicePortName  = "https"
	providerKey      = "provider"
	componentKey     = "component"
	skipMirrorKey    = "endpointslice.kubernetes.io/skip-mirror"
	apiserverEntity  = "apiserver"
	kubernetesEntity = "kubernetes"
)

// ensureService keeps default/kubernetes at the first address of the range, leading to this
// server's advertised address. With an external etcd, other servers' addresses stay in the
// endpoints; a server removes its own when it stops.
func (s *Server) ensureService(ctx context.Context, client kubernetes.Interface) error {
	list, err := registry.List[*corev1.ServiceList](ctx, s.lookup, corev1.Resource("services"), "", everything)
	if err != nil {
		return err
	}
	if err := s.services.Repair(ctx, list.Items, logRepair(ctx)); err != nil {
		return fmt.Errorf("repair addresses of services: %w", err)
	}
	ip, err := firstServiceIP(s.cfg.ServiceCIDR)
	if err != nil {
		return err
	}
	api := client.CoreV1().Services(metav1.NamespaceDefault)
	svc, err := api.Get(ctx, serviceName, metav1.GetOptions{})
	if err == nil && svc.Spec.ClusterIP != ip.String() {
		// The range has changed, and a service's address cannot be changed in place.
		if err := api.Delete(ctx, serviceName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("service %s: %w", serviceName, err)
		}
		err = apierrors.NewNotFound(corev1.Resource("services"), serviceName)
	}
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, kubernetesService(ip.String()), metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", serviceName, err)
	}
	return s.publish(ctx, client, true)
}

func kubernetesService(ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      serviceName,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{providerKey: kubernetesEntity, componentKey: apiserverEntity},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP:       ip,
			ClusterIPs:      []string{ip},
			SessionAffinity: corev1.ServiceAffinityNone,
			Type:            corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{{
				Name: servicePortName, Port: servicePort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(servicePort),
			}},
		},
	}
}

// withdrawAtStop removes our address from the endpoints before the server stops, if other servers
// go on. A single server leaves it there, because it will be back.
func (s *Server) withdrawAtStop(ctx context.Context) error {
	if len(s.cfg.EtcdServers) == 0 {
		return nil
	}
	client, err := s.ownClient()
	if err != nil {
		return err
	}
	return s.chain.front.AddPreShutdownHook("withdraw-endpoints", func() error {
		ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
		defer cancel()
		return s.publish(ctx, client, false)
	})
}

// publish adds our address to the service's endpoints, or removes it.
func (s *Server) publish(ctx context.Context, client kubernetes.Interface, present bool) error {
	own, port := s.cfg.AdvertiseAddress.String(), int32(s.cfg.SecurePort)
	addresses, err := s.otherAddresses(ctx, client, own, port)
	if err != nil {
		return err
	}
	if present {
		addresses = append(addresses, own)
	}
	if err := ensureEndpoints(ctx, client, addresses, port); err != nil {
		return fmt.Errorf("endpoints %s: %w", serviceName, err)
	}
	if err := ensureSlice(ctx, client, addresses, port, s.services.Family()); err != nil {
		return fmt.Errorf("endpointslice %s: %w", serviceName, err)
	}
	return nil
}

// otherAddresses returns the addresses of other servers on the same etcd. With an embedded etcd
// there are none.
func (s *Server) otherAddresses(ctx context.Context, client kubernetes.Interface, own string, port int32) ([]string, error) {
	if len(s.cfg.EtcdServers) == 0 {
		return nil, nil
	}
	slice, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, serviceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range slice.Ports {
		if p.Port == nil || *p.Port != port {
			return nil, nil // another port: written before the configuration changed
		}
	}
	for _, e := range slice.Endpoints {
		for _, a := range e.Addresses {
			if a != own {
				out = append(out, a)
			}
		}
	}
	return out, nil
}

func ensureEndpoints(ctx context.Context, client kubernetes.Interface, addresses []string, port int32) error {
	want := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Name: serviceName, Namespace: metav1.NamespaceDefault, Labels: map[string]string{skipMirrorKey: "true"},
	}}
	if len(addresses) > 0 {
		subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: servicePortName, Port: port, Protocol: corev1.ProtocolTCP}}}
		for _, a := range addresses {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: a})
		}
		want.Subsets = []corev1.EndpointSubset{subset}
	}
	api := client.CoreV1().Endpoints(metav1.NamespaceDefault)
	have, err := api.Get(ctx, serviceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if apiequality.Semantic.DeepEqual(have.Subsets, want.Subsets) {
		return nil
	}
	have.Subsets = want.Subsets
	_, err = api.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

func ensureSlice(ctx context.Context, client kubernetes.Interface, addresses []string, port int32, family corev1.IPFamily) error {
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: serviceName, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName},
		},
		AddressType: discoveryv1.AddressType(family),
		Ports:       []discoveryv1.EndpointPort{{Name: new(servicePortName), Port: new(port), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, a := range addresses {
		want.Endpoints = append(want.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	api := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	have, err := api.Get(ctx, serviceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if apiequality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && apiequality.Semantic.DeepEqual(have.Ports, want.Ports) {
		return nil
	}
	have.Endpoints, have.Ports = want.Endpoints, want.Ports
	_, err = api.Update(ctx, have, metav1.UpdateOptions{})
	return err
}
