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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func TestTheOrderOfAddressTypes(t *testing.T) {
	const host, inIP, inName, exIP, exName = corev1.NodeHostName, corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeExternalIP, corev1.NodeExternalDNS
	all := []corev1.NodeAddress{
		{Type: exIP, Address: "192.0.2.1"}, {Type: inIP, Address: "10.0.0.1"}, {Type: inIP, Address: "10.0.0.2"},
		{Type: host, Address: "n1"}, {Type: inName, Address: ""}, {Type: exName, Address: "n1.example"},
	}
	for _, tt := range []struct {
		order    []corev1.NodeAddressType
		has      []corev1.NodeAddress
		want     string
		refusals []string
	}{
		{order: []corev1.NodeAddressType{host, inIP}, has: all, want: "n1"},
		{order: []corev1.NodeAddressType{inIP, host}, has: all, want: "10.0.0.1"},
		{order: []corev1.NodeAddressType{inName, exName, exIP}, has: all, want: "n1.example"},
		{order: []corev1.NodeAddressType{exIP}, has: all, want: "192.0.2.1"},
		{order: []corev1.NodeAddressType{inName}, has: all, refusals: []string{"node n1 has no address of a type of --kubelet-preferred-address-types", "InternalDNS", "10.0.0.1"}},
		{order: []corev1.NodeAddressType{inIP}, refusals: []string{"node n1 has not reported an address yet"}},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Addresses: tt.has}}
		got, err := address(n, tt.order)
		if got != tt.want || (err == nil) != (tt.refusals == nil) {
			t.Errorf("%v: %q, %v; want %q", tt.order, got, err, tt.want)
		}
		for _, words := range tt.refusals {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%v: %v, want %s", tt.order, err, words)
			}
		}
	}
}

// recorder records the error that the client would get.
type recorder struct{ err error }

func (r *recorder) Object(int, runtime.Object) {}
func (r *recorder) Error(err error)            { r.err = err }
