package node

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// advising is a way to kubelets that says what to do about one whose certificate is not
// trusted, as of every kubelet that joined and made its own.
type advising struct{ *http.Transport }

var _ utilnet.RoundTripperWrapper = advising{}

// RoundTrip implements http.RoundTripper.
func (a advising) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := a.Transport.RoundTrip(req)
	return resp, advise(err)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper: connections to upgrade are
// dialled by it.
func (a advising) WrappedRoundTripper() http.RoundTripper { return a.Transport }

const approve = "approve its request: kubectl get csr, kubectl certificate approve NAME"

func advise(err error) error {
	unknown := x509.UnknownAuthorityError{}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return fmt.Errorf("%w (the kubelet made its serving certificate itself: start it with serverTLSBootstrap: true, "+
			"or --rotate-server-certificates, and %s)", err, approve)
	case strings.Contains(err.Error(), "remote error: tls: internal error"):
		return fmt.Errorf("%w (the kubelet may have no serving certificate yet: %s)", err, approve)
	}
	return err
}
