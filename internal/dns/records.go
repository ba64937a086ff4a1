package dns

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/trace"
)

// Names of the indexes.
const (
	byAddress = "wherry/address" // services and slices by each of their addresses
	byService = "wherry/service" // slices by NAMESPACE/NAME of their service
)

// Records are the services, endpoints and namespaces that the zone answers from.
type Records struct {
	namespaces, services, slices cache.Indexer
	synced                       []cache.InformerSynced
}

// NewRecords returns the records that the informers of f have. Call it before f is started.
func NewRecords(f informers.SharedInformerFactory) (*Records, error) {
	namespaces := f.Core().V1().Namespaces().Informer()
	services := f.Core().V1().Services().Informer()
	endpoints := f.Discovery().V1().EndpointSlices().Informer()
	_, err := services.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{AddFunc: nameKnown})
	err = errors.Join(err,
		addIndexers(services, cache.Indexers{byAddress: addressesOfService}),
		addIndexers(endpoints, cache.Indexers{byAddress: addressesOfSlice, byService: serviceOfSlice}),
	)
	if err != nil {
		return nil, err
	}
	return &Records{
		namespaces: namespaces.GetIndexer(), services: services.GetIndexer(), slices: endpoints.GetIndexer(),
		synced: []cache.InformerSynced{namespaces.HasSynced, services.HasSynced, endpoints.HasSynced},
	}, nil
}

// nameKnown records that the name of a new service is answered from now on.
func nameKnown(obj any, initial bool) {
	if s, ok := obj.(*v1.Service); ok && !initial {
		now := time.Now()
		// An informer's handler has no context, and the span no parent.
		trace.RecordObject(context.Background(), string(s.UID), "dns: name is known", now, now)
	}
}

// addIndexers adds the indexes that the informer does not have yet.
func addIndexers(informer cache.SharedIndexInformer, add cache.Indexers) error {
	have := informer.GetIndexer().GetIndexers()
	for name := range add {
		if have[name] != nil {
			delete(add, name)
		}
	}
	return informer.AddIndexers(add)
}

func addressesOfService(obj any) ([]string, error) {
	s, ok := obj.(*v1.Service)
	if !ok || headless(s) {
		return nil, nil
	}
	return canonical(s.Spec.ClusterIPs), nil
}

func addressesOfSlice(obj any) ([]string, error) {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok || s.AddressType == discoveryv1.AddressTypeFQDN || s.Labels[discoveryv1.LabelServiceName] == "" {
		return nil, nil
	}
	var out []string
	for i := range s.Endpoints {
		out = append(out, canonical(s.Endpoints[i].Addresses)...)
	}
	return out, nil
}

// canonical returns the addresses as netip writes them; what is not one is left out.
func canonical(addresses []string) []string {
	out := make([]string, 0, len(addresses))
	for _, s := range addresses {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, a.Unmap().String())
		}
	}
	return out
}

func serviceOfSlice(obj any) ([]string, error) {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
		return nil, nil
	}
	return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
}

// Synced reports whether the records are complete.
func (r *Records) Synced() bool {
	return !slices.ContainsFunc(r.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

func (r *Records) namespaceExists(name string) bool {
	_, ok, err := r.namespaces.GetByKey(name)
	return ok && err == nil
}

// service returns a service, or nil.
func (r *Records) service(namespace, name string) *v1.Service {
	obj, ok, err := r.services.GetByKey(namespace + "/" + name)
	if !ok || err != nil {
		return nil
	}
	s, _ := obj.(*v1.Service)
	return s
}

// slicesOf returns the endpoint slices of a service.
func (r *Records) slicesOf(namespace, name string) []*discoveryv1.EndpointSlice {
	return lookUp[*discoveryv1.EndpointSlice](r.slices, byService, namespace+"/"+name)
}

func (r *Records) servicesAt(a netip.Addr) []*v1.Service {
	return lookUp[*v1.Service](r.services, byAddress, a.String())
}

func (r *Records) slicesAt(a netip.Addr) []*discoveryv1.EndpointSlice {
	return lookUp[*discoveryv1.EndpointSlice](r.slices, byAddress, a.String())
}

func lookUp[T any](in cache.Indexer, index, value string) []T {
	objs, err := in.ByIndex(index, value)
	if err != nil {
		return nil
	}
	out := make([]T, 0, len(objs))
	for _, o := range objs {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

func headless(s *v1.Service) bool {
	return s.Spec.Type != v1.ServiceTypeExternalName && (s.Spec.ClusterIP == v1.ClusterIPNone || s.Spec.ClusterIP == "")
}

// endpoint is one address of a service's endpoint, with a port; port 0 stands for none.
type endpoint struct {
	addr     netip.Addr
	hostname string // the label below the service's name
	port     int32
	portName string
	protocol string // lower case
}

// endpointsOf returns the ready endpoints of the slices, once for each of their ports.
func endpointsOf(all []*discoveryv1.EndpointSlice) []endpoint {
	var out []endpoint
	for _, s := range all {
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					out = appendPorts(out, endpoint{addr: a.Unmap(), hostname: hostnameOf(e, a.Unmap())}, s.Ports)
				}
			}
		}
	}
	return out
}

func appendPorts(out []endpoint, e endpoint, ports []discoveryv1.EndpointPort) []endpoint {
	if len(ports) == 0 {
		return append(out, e)
	}
	for _, p := range ports {
		e.port, e.portName, e.protocol = deref(p.Port), deref(p.Name), strings.ToLower(string(deref(p.Protocol)))
		out = append(out, e)
	}
	return out
}

func deref[T any](p *T) (zero T) {
	if p == nil {
		return zero
	}
	return *p
}

// hostnameOf returns an endpoint's label: its hostname, or its address with dashes.
func hostnameOf(e *discoveryv1.Endpoint, a netip.Addr) string {
	if h := deref(e.Hostname); h != "" {
		return strings.ToLower(h)
	}
	return dashed(a)
}

// dashed writes an address as a label, 10-0-0-1 or fd00--1. An IPv6 address may neither begin nor end
// with a dash.
func dashed(a netip.Addr) string {
	if a.Is4() {
		return strings.ReplaceAll(a.String(), ".", "-")
	}
	s := strings.ReplaceAll(a.String(), ":", "-")
	if strings.HasPrefix(s, "-") {
		s = "0" + s
	}
	if strings.HasSuffix(s, "-") {
		s += "0"
	}
	return s
}

// undashed is the inverse of dashed.
func undashed(label string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", ".")); err == nil {
		return a, true
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", ":"))
	return a, err == nil
}
