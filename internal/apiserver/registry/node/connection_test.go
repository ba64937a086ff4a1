package node

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestLogsBehindAProxyForImages: HTTPS_PROXY, set so that images can be pulled, led the
// requests for logs away from the kubelet.
func TestLogsBehindAProxyForImages(t *testing.T) {
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer kubelet.Close()
	roots := x509.NewCertPool()
	roots.AddCert(kubelet.Certificate())
	tr := newTransport(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, time.Minute)
	defer tr.CloseIdleConnections()
	// Go reads the variables once a process and never proxies loopback, so ask the transport.
	if tr.Proxy != nil {
		t.Error("connections to kubelets use a proxy")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, kubelet.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if resp.StatusCode != http.StatusTeapot {
		t.Error(resp.Status)
	}
}
