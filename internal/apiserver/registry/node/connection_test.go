package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// TestLogsBehindAProxyForImages: HTTPS_PROXY, set so that images can be pulled, used to lead
// requests for logs away from the kubelet.
func TestLogsBehindAProxyForImages(t *testing.T) {
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer kubelet.Close()
	roots := x509.NewCertPool()
	roots.AddCert(kubelet.Certificate())
	tr := newTransport(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, time.Minute)
	defer tr.CloseIdleConnections()
	// Go reads the variables once per process and never proxies loopback, so look at the transport.
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

// TestAKubeletsOwnCertificateIsRefusedWithAdvice: "unknown authority" alone tells nobody what to do
// about it.
func TestAKubeletsOwnCertificateIsRefusedWithAdvice(t *testing.T) {
	made := httptest.NewUnstartedServer(http.NotFoundHandler())
	none := httptest.NewUnstartedServer(http.NotFoundHandler())
	made.StartTLS()
	none.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return nil, errors.New("no serving certificate available for the kubelet")
	}}
	none.StartTLS()
	tr := newTransport(&tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}, time.Minute)
	defer tr.CloseIdleConnections()
	for want, kubelet := range map[string]*httptest.Server{"serverTLSBootstrap: true": made, "no serving certificate yet": none} {
		kubelet.Config.ErrorLog = log.New(io.Discard, "", 0)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, kubelet.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := advising{tr}.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "kubectl certificate approve NAME") {
			t.Errorf("%v, want %s", err, want)
		}
		conn, err := dial(t.Context(), tr, kubelet.Listener.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("to upgrade: %v, want %s", err, want)
		}
		for _, upgrade := range []string{"", "SPDY/3.1"} {
			location, err := url.Parse(kubelet.URL)
			if err != nil {
				t.Fatal(err)
			}
			var told recorder
			asked := httptest.NewRequest(http.MethodPost, "/exec/ns/pod/main", http.NoBody)
			if upgrade != "" {
				asked.Header.Set("Connection", "Upgrade")
				asked.Header.Set("Upgrade", upgrade)
			}
			Forward(location, "", tr, advisingResponder{&told}).ServeHTTP(httptest.NewRecorder(), asked)
			if told.err == nil || strings.Count(told.err.Error(), want) != 1 {
				t.Errorf("through the proxy, upgrade %q: %v, want %s", upgrade, told.err, want)
			}
		}
		kubelet.Close()
	}
}

// recorder records the error that the client would get.
type recorder struct{ err error }

func (r *recorder) Object(int, runtime.Object) {}
func (r *recorder) Error(err error)            { r.err = err }
