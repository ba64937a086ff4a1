package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Proxy is the endpoint nodes/NAME/proxy: requests to a kubelet's own API, or to another
// port of its node.
type Proxy struct{ connector *Connector }

var _ rest.Connecter = (*Proxy)(nil)

// NewProxy returns the endpoint.
func NewProxy(c *Connector) *Proxy { return &Proxy{c} }

// New implements rest.Storage.
func (p *Proxy) New() runtime.Object { return &corev1.NodeProxyOptions{} }

// Destroy implements rest.Storage.
func (p *Proxy) Destroy() {}

// ConnectMethods implements rest.Connecter.
func (p *Proxy) ConnectMethods() []string {
	return []string{"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"}
}

// NewConnectOptions implements rest.Connecter.
func (p *Proxy) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.NodeProxyOptions{}, true, "path"
}

// Connect implements rest.Connecter.
func (p *Proxy) Connect(ctx context.Context, name string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := opts.(*corev1.NodeProxyOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %T", opts)
	}
	location, transport, err := p.locate(ctx, name)
	if err != nil {
		return nil, err
	}
	return Forward(location, o.Path, transport, advisingResponder{responder}), nil
}

// locate returns the location that NAME, NAME:PORT or SCHEME:NAME:PORT means: the kubelet, or
// another port of the node.
func (p *Proxy) locate(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	kubelet, err := p.connector.Kubelet(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if port == "" || port == kubelet.URL.Port() {
		return &kubelet.URL, p.connector.transport, nil // the responder adds the advice: upgrades dial by themselves
	}
	host := kubelet.URL.Hostname()
	if err := Proxied(host); err != nil {
		return nil, nil, err
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}, p.connector.Others(), nil
}

// Proxied returns an error for addresses that would lead into the API server's own machine, such as
// those of loopback and of metadata services. Names are the administrator's choice.
func Proxied(host string) error {
	if ip := net.ParseIP(host); ip != nil && !ip.IsGlobalUnicast() {
		return apierrors.NewBadRequest("address not allowed")
	}
	return nil
}

// Forward returns a handler that forwards a request to the path below the location.
func Forward(location *url.URL, path string, transport http.RoundTripper, responder rest.Responder) http.Handler {
	to := *location
	to.Path = utilnet.JoinPreservingTrailingSlash(to.Path, path)
	return proxy.NewUpgradeAwareHandler(&to, transport, true, false, proxy.NewErrorResponder(responder))
}
