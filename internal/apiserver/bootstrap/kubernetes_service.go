package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/apiserver/registry"
)

// ServiceName is the service in the namespace default through which programs in pods find us.
const ServiceName = "kubernetes"

const (
	servicePort      = 443
	servicePortName  = "https"
	providerKey      = "provider"
	componentKey     = "component"
	skipMirrorKey    = "endpointslice.kubernetes.io/skip-mirror"
	apiserverEntity  = "apiserver"
	kubernetesEntity = "kubernetes"
)

// repairClaims makes what is claimed for services match them, before anything is claimed anew.
func (o *Objects) repairClaims(ctx context.Context) error {
	list, err := registry.List[*corev1.ServiceList](ctx, o.cfg.Lookup, corev1.Resource("services"), "", storage.Everything)
	if err != nil {
		return err
	}
	if err := o.cfg.Services.Repair(ctx, list.Items, logRepair(ctx)); err != nil {
		return fmt.Errorf("repair addresses of services: %w", err)
	}
	return nil
}

// ensureService keeps default/kubernetes at the first address of the range, leading to this
// server's advertised address, and to those of other servers that are there. A server removes its own
// when it stops, and the others do when it has died.
func (o *Objects) ensureService(ctx context.Context) error {
	ip := o.cfg.ServiceIP.String()
	api := o.cfg.Client.CoreV1().Services(metav1.NamespaceDefault)
	svc, err := api.Get(ctx, ServiceName, metav1.GetOptions{})
	if err == nil && svc.Spec.ClusterIP != ip {
		// The range has changed, and a service's address cannot be changed in place.
		if err := api.Delete(ctx, ServiceName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("service %s: %w", ServiceName, err)
		}
		err = apierrors.NewNotFound(corev1.Resource("services"), ServiceName)
	}
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, kubernetesService(ip), metav1.CreateOptions{})
	}
	if apierrors.IsInvalid(err) {
		err = o.addressTaken(ctx, ip, err)
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", ServiceName, err)
	}
	return o.publish(ctx, true)
}

// claimPatience is how long another server may take from the claim of the address to the service.
const claimPatience = 10 * time.Second

// addressTaken says why the address of default/kubernetes cannot be had. The error passes if its own service
// has the address: another server is about to make it, or one was killed between the two writes, and then
// the address is released here.
func (o *Objects) addressTaken(ctx context.Context, ip string, refused error) error {
	a, err := o.cfg.Client.NetworkingV1().IPAddresses().Get(ctx, ip, metav1.GetOptions{})
	if err != nil {
		return errors.Join(refused, err)
	}
	ref := a.Spec.ParentRef
	switch {
	case ref == nil:
		return fmt.Errorf("%w; delete the IPAddress %s, which belongs to nothing", refused, ip)
	case ref.Resource != "services" || ref.Namespace != metav1.NamespaceDefault || ref.Name != ServiceName:
		return fmt.Errorf("%w to %s %s/%s, which must be deleted", refused, ref.Resource, ref.Namespace, ref.Name)
	case o.cfg.Alone || time.Since(a.CreationTimestamp.Time) > claimPatience:
		// Our own requests come one after another, so it is nobody's.
		unchanged := metav1.NewPreconditionDeleteOptions(string(a.UID))
		if err := o.cfg.Client.NetworkingV1().IPAddresses().Delete(ctx, ip, *unchanged); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return apierrors.NewConflict(networkingv1.Resource("ipaddresses"), ip, refused)
}

// keepService makes default/kubernetes again when it is gone, until ctx ends.
func (o *Objects) keepService(ctx context.Context) error {
	k := ownObject{resource: "services", namespace: metav1.NamespaceDefault, name: ServiceName}
	return keep[*corev1.Service](ctx, o.cfg.Store(k.group, k.resource), k, o.ensureService)
}

func kubernetesService(ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      ServiceName,
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

// publish adds our address to the service's endpoints, or removes it. Other servers do the same at any time:
// what is written follows from what was read, and a conflict is tried again.
func (o *Objects) publish(ctx context.Context, present bool) error {
	kinds := map[string]func(context.Context, bool) error{"endpoints": o.publishEndpoints, "endpointslice": o.publishSlice}
	for kind, write := range kinds {
		another := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
		if err := retry.OnError(publishBackoff, another, func() error { return write(ctx, present) }); err != nil {
			return fmt.Errorf("%s %s: %w", kind, ServiceName, err)
		}
	}
	return nil
}

// publishBackoff lasts as long as some servers that come and go at once need.
var publishBackoff = wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: time.Second}

// keepPresent publishes the addresses of the servers that are there, until ctx ends.
func (o *Objects) keepPresent(ctx context.Context) error {
	return o.cfg.Present(ctx, o.cfg.Address.String(), func(addresses []string) {
		o.present.Store(&addresses)
		err := o.insist(ctx, func() error { return o.publish(ctx, true) })
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot publish the addresses of the servers", "addresses", addresses)
		}
	})
}

// addresses returns what is to be published, given the addresses that are: those of the servers that are there. As
// long as that is not known, those of others stay. A server that is alone has no others, and what was published with
// another port was written before the configuration changed.
func (o *Objects) addresses(published []string, ports []int32, present bool) []string {
	own := o.cfg.Address.String()
	var out []string
	if !o.cfg.Alone && !slices.ContainsFunc(ports, func(p int32) bool { return p != int32(o.cfg.Port) }) {
		others := published
		if known := o.present.Load(); known != nil {
			others = *known
		}
		out = slices.DeleteFunc(slices.Clone(others), func(a string) bool { return a == own })
	}
	if present {
		out = append(out, own)
	}
	return out
}

func (o *Objects) publishEndpoints(ctx context.Context, present bool) error {
	api := o.cfg.Client.CoreV1().Endpoints(metav1.NamespaceDefault)
	have, err := api.Get(ctx, ServiceName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	missing := err != nil
	if missing {
		have = &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
			Name: ServiceName, Namespace: metav1.NamespaceDefault, Labels: map[string]string{skipMirrorKey: "true"},
		}}
	}
	var published []string
	var ports []int32
	for _, subset := range have.Subsets {
		for _, a := range subset.Addresses {
			published = append(published, a.IP)
		}
		for _, p := range subset.Ports {
			ports = append(ports, p.Port)
		}
	}
	var subsets []corev1.EndpointSubset
	if addresses := o.addresses(published, ports, present); len(addresses) > 0 {
		port := corev1.EndpointPort{Name: servicePortName, Port: int32(o.cfg.Port), Protocol: corev1.ProtocolTCP}
		subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{port}}
		for _, a := range slices.Sorted(slices.Values(addresses)) {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: a})
		}
		subsets = []corev1.EndpointSubset{subset}
	}
	switch {
	case missing:
		have.Subsets = subsets
		_, err = api.Create(ctx, have, metav1.CreateOptions{})
		return err
	case apiequality.Semantic.DeepEqual(have.Subsets, subsets):
		return nil
	}
	have.Subsets = subsets
	_, err = api.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

func (o *Objects) publishSlice(ctx context.Context, present bool) error {
	api := o.cfg.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	have, err := api.Get(ctx, ServiceName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	missing := err != nil
	if missing {
		have = &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: ServiceName, Namespace: metav1.NamespaceDefault,
				Labels: map[string]string{discoveryv1.LabelServiceName: ServiceName},
			},
			AddressType: discoveryv1.AddressType(o.cfg.Services.Families()[0]),
		}
	}
	var published []string
	for _, e := range have.Endpoints {
		published = append(published, e.Addresses...)
	}
	var numbers []int32
	for _, p := range have.Ports {
		numbers = append(numbers, ptr.Deref(p.Port, 0))
	}
	var endpoints []discoveryv1.Endpoint
	for _, a := range slices.Sorted(slices.Values(o.addresses(published, numbers, present))) {
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	ports := []discoveryv1.EndpointPort{{Name: new(servicePortName), Port: new(int32(o.cfg.Port)), Protocol: new(corev1.ProtocolTCP)}}
	switch {
	case missing:
		have.Endpoints, have.Ports = endpoints, ports
		_, err = api.Create(ctx, have, metav1.CreateOptions{})
		return err
	case apiequality.Semantic.DeepEqual(have.Endpoints, endpoints) && apiequality.Semantic.DeepEqual(have.Ports, ports):
		return nil
	}
	have.Endpoints, have.Ports = endpoints, ports
	_, err = api.Update(ctx, have, metav1.UpdateOptions{})
	return err
}
