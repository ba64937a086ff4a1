package pod

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/apiserver/registry/node"
)

// Proxy is the endpoint pods/NAME/proxy: requests to a server in a pod.
type Proxy struct {
	pods      getter
	transport http.RoundTripper
}

var _ rest.Connecter = (*Proxy)(nil)

// NewProxy returns the endpoint.
func NewProxy(pods getter, transport http.RoundTripper) *Proxy { return &Proxy{pods, transport} }

// New implements rest.Storage.
func (p *Proxy) New() runtime.Object { return &corev1.PodProxyOptions{} }

// Destroy implements rest.Storage.
func (p *Proxy) Destroy() {}

// ConnectMethods implements rest.Connecter.
func (p *Proxy) ConnectMethods() []string {
	return []string{"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"}
}

// NewConnectOptions implements rest.Connecter.
func (p *Proxy) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodProxyOptions{}, true, "path"
}

// Connect implements rest.Connecter.
func (p *Proxy) Connect(ctx context.Context, name string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := opts.(*corev1.PodProxyOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %T", opts)
	}
	location, err := p.locate(ctx, name)
	if err != nil {
		return nil, err
	}
	return node.Forward(location, o.Path, p.transport, responder), nil
}

// locate returns the location that NAME, NAME:PORT or SCHEME:NAME:PORT means. Without a port it is
// the first that a container of the pod names.
func (p *Proxy) locate(ctx context.Context, id string) (*url.URL, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	pod, err := getPod(ctx, p.pods, name)
	if err != nil {
		return nil, err
	}
	ip := pod.Status.PodIP
	if net.ParseIP(ip) == nil {
		return nil, apierrors.NewBadRequest("address not allowed") // the pod has none yet
	}
	if err := node.Proxied(ip); err != nil {
		return nil, err
	}
	for i := 0; i < len(pod.Spec.Containers) && port == ""; i++ {
		if ports := pod.Spec.Containers[i].Ports; len(ports) > 0 {
			port = strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	location := &url.URL{Scheme: scheme, Host: net.JoinHostPort(ip, port)}
	if port == "" {
		location.Host = strings.TrimSuffix(location.Host, ":")
	}
	return location, nil
}
