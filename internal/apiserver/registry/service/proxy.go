package service

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/node"
)

// Proxy is the endpoint services/NAME/proxy: requests to a ready endpoint of a service.
type Proxy struct {
	lookup    *registry.Lookup
	transport http.RoundTripper
}

var _ rest.Connecter = (*Proxy)(nil)

// NewProxy returns the endpoint.
func NewProxy(lookup *registry.Lookup, transport http.RoundTripper) *Proxy {
	return &Proxy{lookup, transport}
}

// New implements rest.Storage.
func (p *Proxy) New() runtime.Object { return &corev1.ServiceProxyOptions{} }

// Destroy implements rest.Storage.
func (p *Proxy) Destroy() {}

// ConnectMethods implements rest.Connecter.
func (p *Proxy) ConnectMethods() []string {
	return []string{"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"}
}

// NewConnectOptions implements rest.Connecter.
func (p *Proxy) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.ServiceProxyOptions{}, true, "path"
}

// Connect implements rest.Connecter.
func (p *Proxy) Connect(ctx context.Context, name string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := opts.(*corev1.ServiceProxyOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %T", opts)
	}
	location, err := p.locate(ctx, name)
	if err != nil {
		return nil, err
	}
	return node.Forward(location, o.Path, p.transport, responder), nil
}

// locate returns the location that NAME, NAME:PORT or SCHEME:NAME:PORT means, where PORT is a number
// or a name of one of the service's ports.
func (p *Proxy) locate(ctx context.Context, id string) (*url.URL, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	namespace := request.NamespaceValue(ctx)
	svc, err := registry.Get[*corev1.Service](ctx, p.lookup, corev1.Resource("services"), namespace, name)
	if err != nil {
		return nil, err
	}
	if port, err = portName(svc, port); err != nil {
		return nil, err
	}
	all, err := registry.List[*discoveryv1.EndpointSliceList](ctx, p.lookup, discoveryv1.Resource("endpointslices"), namespace, slicesOf(name))
	if err != nil {
		return nil, err
	}
	candidates := ready(all.Items, port)
	rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	for _, c := range candidates {
		if p.isPod(ctx, namespace, c) {
			return &url.URL{Scheme: scheme, Host: c.at.String()}, nil
		}
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
}

// portName returns the name of the port that a request names by its number or its name.
func portName(svc *corev1.Service, port string) (string, error) {
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return port, nil //nolint:nilerr // what is no number is a name
	}
	for _, p := range svc.Spec.Ports {
		if int64(p.Port) == n {
			return p.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", n, svc.Name))
}

func slicesOf(service string) storage.SelectionPredicate {
	return storage.SelectionPredicate{
		Label: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}), Field: fields.Everything(),
		GetAttrs: storage.DefaultNamespaceScopedAttr,
	}
}

type candidate struct {
	at  netip.AddrPort
	pod *corev1.ObjectReference
}

// ready returns the ready endpoints that have a port of the name.
func ready(all []discoveryv1.EndpointSlice, port string) (out []candidate) {
	for _, s := range all {
		for _, p := range s.Ports {
			if p.Port == nil || p.Name != nil && *p.Name != port || p.Name == nil && port != "" {
				continue
			}
			for _, e := range s.Endpoints {
				ip, err := netip.ParseAddr(e.Addresses[0])
				if err == nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					out = append(out, candidate{netip.AddrPortFrom(ip, uint16(*p.Port)), e.TargetRef})
				}
			}
		}
	}
	return out
}

// isPod reports whether an endpoint is what it says, a pod of the namespace. Somebody who may write
// endpoints must not use us to reach something else.
func (p *Proxy) isPod(ctx context.Context, namespace string, c candidate) bool {
	if c.pod == nil || c.pod.Kind != "Pod" || c.pod.Namespace != namespace || node.Proxied(c.at.Addr().String()) != nil {
		return false
	}
	pod, err := registry.Get[*corev1.Pod](ctx, p.lookup, corev1.Resource("pods"), namespace, c.pod.Name)
	if err != nil || pod.UID != c.pod.UID {
		return false
	}
	for _, ip := range pod.Status.PodIPs {
		if net.ParseIP(ip.IP).Equal(c.at.Addr().AsSlice()) {
			return true
		}
	}
	return false
}
