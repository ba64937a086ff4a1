// Package node connects to the kubelets of nodes: for logs, exec and the like, and for
// nodes/NAME/proxy.
package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/pki"
)

// kubeletPort is the port of a kubelet whose node does not name one.
const kubeletPort = 10250

var nodes = schema.GroupResource{Resource: "nodes"}

// Connector makes connections to kubelets, with our client certificate.
type Connector struct {
	lookup    *registry.Lookup
	order     []corev1.NodeAddressType
	transport *http.Transport
	unchecked *http.Transport
	others    *http.Transport
}

// TLS names the files for connections to kubelets.
type TLS struct{ CertFile, KeyFile, CAFile string }

// NewConnector reads the certificates. The kubelets' certificates must be signed by the CA. Order has the
// types of the addresses at which kubelets are reached, the preferred one first.
func NewConnector(lookup *registry.Lookup, files TLS, order []corev1.NodeAddressType, timeout time.Duration) (*Connector, error) {
	cert, err := pki.OpenFiles(files.CertFile, files.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("client certificate for kubelets: %w", err)
	}
	ca, err := os.ReadFile(files.CAFile)
	if err != nil {
		return nil, fmt.Errorf("certificate authority of kubelets: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("certificate authority of kubelets: no certificate in %s", files.CAFile)
	}
	checked := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	checked.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert.Current() }
	unchecked := checked.Clone()
	unchecked.InsecureSkipVerify = true             //nolint:gosec // requested by PodLogOptions.insecureSkipTLSVerifyBackend
	others := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a pod has no name that could be checked
	return &Connector{
		lookup:    lookup,
		order:     order,
		transport: newTransport(checked, timeout),
		unchecked: newTransport(unchecked, timeout),
		others:    newTransport(others, timeout),
	}, nil
}

// Others returns the transport to everything but kubelets, on nodes and in pods: it has no client
// certificate of ours, and does not verify theirs.
func (c *Connector) Others() http.RoundTripper { return c.others }

// newTransport returns a transport that never uses a proxy: HTTPS_PROXY in our environment is for
// pulling images.
func newTransport(cfg *tls.Config, timeout time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		TLSClientConfig:     cfg,
		DialContext:         dialer.DialContext,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: timeout,
	}
}

// Close closes idle connections.
func (c *Connector) Close() {
	c.transport.CloseIdleConnections()
	c.unchecked.CloseIdleConnections()
	c.others.CloseIdleConnections()
}

// Kubelet says how to reach a kubelet.
type Kubelet struct {
	URL       url.URL // scheme and host
	Transport http.RoundTripper
	// Unchecked does not verify the kubelet's certificate.
	Unchecked http.RoundTripper
	// Dial opens a connection for one request that will be upgraded.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Kubelet returns how to reach the kubelet of a node.
func (c *Connector) Kubelet(ctx context.Context, name string) (Kubelet, error) {
	n, err := registry.Get[*corev1.Node](ctx, c.lookup, nodes, "", name)
	if err != nil {
		return Kubelet{}, err
	}
	host, err := address(n, c.order)
	if err != nil {
		return Kubelet{}, apierrors.NewServiceUnavailable(err.Error())
	}
	port := int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = kubeletPort
	}
	where := net.JoinHostPort(host, strconv.Itoa(port))
	return Kubelet{
		URL:       url.URL{Scheme: "https", Host: where},
		Transport: advising{c.transport},
		Unchecked: c.unchecked,
		Dial:      func(ctx context.Context) (net.Conn, error) { return dial(ctx, c.transport, where) },
	}, nil
}

// address returns the first of the node's addresses that has the first of the types that any has.
func address(n *corev1.Node, order []corev1.NodeAddressType) (string, error) {
	for _, kind := range order {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && a.Address != "" {
				return a.Address, nil
			}
		}
	}
	if len(n.Status.Addresses) > 0 {
		return "", fmt.Errorf("node %s has no address of a type of --kubelet-preferred-address-types %v: %v", n.Name, order, n.Status.Addresses)
	}
	return "", fmt.Errorf("node %s has not reported an address yet", n.Name)
}
