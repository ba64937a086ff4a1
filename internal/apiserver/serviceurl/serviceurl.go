// Package serviceurl says where a service is reached, for those who call services from within the API
// server: webhooks and aggregation. It reads services and their endpoints directly from storage.
package serviceurl

import (
	"context"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/proxy"
	listersv1 "k8s.io/client-go/listers/core/v1"

	"wherry.dev/internal/apiserver/registry"
)

// Resolver finds services. It is what k8s.io/apiserver and k8s.io/kube-aggregator call a
// ServiceResolver. All fields but ByEndpoint are required.
type Resolver struct {
	// Context is that of all look-ups.
	Context context.Context //nolint:containedctx // the libraries' interface has none
	Lookup  *registry.Lookup
	// Self is this server, which is also what default/kubernetes leads to.
	Self url.URL
	// ByEndpoint leads to a ready endpoint of the service (--enable-aggregator-routing), for servers on
	// machines that do not reach cluster IPs; otherwise it leads to the cluster IP.
	ByEndpoint bool
}

const selfPort = 443

// ResolveEndpoint returns the URL of a service, without a path. A service without a cluster IP has none,
// unless ByEndpoint is set; one with an external name leads there.
func (r *Resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == corev1.NamespaceDefault && name == "kubernetes" && port == selfPort {
		self := r.Self // the caller adds a path
		return &self, nil
	}
	if r.ByEndpoint {
		return proxy.ResolveEndpoint(services{r}, slices{r}, namespace, name, port)
	}
	return proxy.ResolveCluster(services{r}, namespace, name, port)
}

// services are those in storage, as listers.
type services struct{ *Resolver }

// List implements listersv1.ServiceLister.
func (s services) List(selector labels.Selector) ([]*corev1.Service, error) {
	return s.list("", selector)
}

func (s services) list(namespace string, selector labels.Selector) ([]*corev1.Service, error) {
	list, err := registry.List[*corev1.ServiceList](s.Context, s.Lookup, corev1.Resource("services"), namespace, selecting(selector))
	if err != nil {
		return nil, err
	}
	return pointers(list.Items), nil
}

// Services implements listersv1.ServiceLister.
func (s services) Services(namespace string) listersv1.ServiceNamespaceLister {
	return inNamespace{s, namespace}
}

type inNamespace struct {
	services
	namespace string
}

// List implements listersv1.ServiceNamespaceLister.
func (s inNamespace) List(selector labels.Selector) ([]*corev1.Service, error) {
	return s.list(s.namespace, selector)
}

// Get implements listersv1.ServiceNamespaceLister.
func (s inNamespace) Get(name string) (*corev1.Service, error) {
	return registry.Get[*corev1.Service](s.Context, s.Lookup, corev1.Resource("services"), s.namespace, name)
}

// slices are the endpoints in storage.
type slices struct{ *Resolver }

// GetEndpointSlices implements proxy.EndpointSliceGetter.
func (s slices) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	of := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
	list, err := registry.List[*discoveryv1.EndpointSliceList](s.Context, s.Lookup, discoveryv1.Resource("endpointslices"), namespace, selecting(of))
	if err != nil {
		return nil, err
	}
	return pointers(list.Items), nil
}

func selecting(selector labels.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: selector, Field: fields.Everything()}
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
