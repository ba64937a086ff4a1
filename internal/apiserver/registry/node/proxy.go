package node

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Proxy is the endpoint nodes/NAME/proxy: requests to a kubelet's own API.
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
	kubelet, err := p.connector.Kubelet(ctx, name)
	if err != nil {
		return nil, err
	}
	location := kubelet.URL
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, o.Path)
	return forward(&location, kubelet.Transport, responder), nil
}

func forward(location *url.URL, transport http.RoundTripper, responder rest.Responder) http.Handler {
	return proxy.NewUpgradeAwareHandler(location, transport, true, false, proxy.NewErrorResponder(responder))
}
