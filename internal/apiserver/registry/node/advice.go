package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/rest"
)

// advising is a transport to kubelets whose errors say what to do if a kubelet's certificate is not
// trusted. That is so for every kubelet that joined and made its own certificate.
type advising struct{ *http.Transport }

var _ utilnet.RoundTripperWrapper = advising{}

// RoundTrip implements http.RoundTripper.
func (a advising) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := a.Transport.RoundTrip(req)
	return resp, advise(err)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper: it dials the connections of requests
// that upgrade.
func (a advising) WrappedRoundTripper() http.RoundTripper { return a.Transport }

// advisingResponder adds the same advice to the error of every request that could not be forwarded.
type advisingResponder struct{ rest.Responder }

// Error implements rest.Responder.
func (r advisingResponder) Error(err error) { r.Responder.Error(advise(err)) }

// dial opens a connection as the transport does, for HTTP/1.1 and with the same advice. The
// library's handlers for upgrades dial by themselves, and report only the handshake's own error.
func dial(ctx context.Context, tr *http.Transport, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	conn, err := tr.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	cfg := tr.TLSClientConfig.Clone()
	cfg.ServerName, cfg.NextProtos = host, []string{"http/1.1"}
	secure := tls.Client(conn, cfg)
	ctx, cancel := context.WithTimeout(ctx, tr.TLSHandshakeTimeout)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(advise(err), conn.Close())
	}
	return secure, nil
}

const approve = "approve its request: kubectl get csr, kubectl certificate approve NAME"

// advise looks for known texts in the error, because the proxy keeps no more of it.
func advise(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "x509: certificate signed by unknown authority"):
		return fmt.Errorf("%w (the kubelet created its own serving certificate: start it with serverTLSBootstrap: true, "+
			"or --rotate-server-certificates, and %s)", err, approve)
	case strings.Contains(err.Error(), "remote error: tls: internal error"):
		return fmt.Errorf("%w (the kubelet may have no serving certificate yet: %s)", err, approve)
	}
	return err
}
