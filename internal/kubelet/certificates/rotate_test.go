package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"wherry.dev/internal/pki"
)

// signing returns a clientset that signs requests for certificates at once, for life, and a
// function that returns how many there were.
func signing(t *testing.T, s *signer) (client *fake.Clientset, count func() int) {
	t.Helper()
	client = fake.NewClientset()
	var mu sync.Mutex
	n := 0
	client.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if n++; n > 1 { // the tracker knows no field selectors: one at a time
			gvr := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
			if err := client.Tracker().Delete(gvr, "", fmt.Sprintf("csr-%d", n-1)); err != nil {
				t.Error(err)
			}
		}
		r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		r.Name = fmt.Sprintf("csr-%d", n)
		r.Status.Certificate = s.sign(r.Spec.Request)
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue}}
		return false, nil, nil
	})
	return client, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// TestRotationComesInTheLastThirdOfALife lets a certificate of ten hours grow old.
func TestRotationComesInTheLastThirdOfALife(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca, err := pki.LoadOrCreateCA(dir, "ca", "ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		s := &signer{t: t, ca: ca, life: 10 * time.Hour}
		client, count := signing(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		var hungUp atomic.Int32
		m, err := NewClient(ctx, client, Client{NodeName: "n1", Dir: dir, HangUp: func() { hungUp.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		first, err := m.Current()
		if err != nil || count() != 1 || hungUp.Load() != 1 {
			t.Fatalf("%d requests, %d hung up, %v", count(), hungUp.Load(), err)
		}
		time.Sleep(7*time.Hour - 5*time.Minute) // signed for ten hours and one minute
		synctest.Wait()
		if count() != 1 {
			t.Errorf("asked again %s before the end", time.Until(first.Leaf.NotAfter))
		}
		time.Sleep(2*time.Hour + 10*time.Minute)
		synctest.Wait()
		second, err := m.Current()
		if err != nil || count() != 2 || second.Leaf.Equal(first.Leaf) || hungUp.Load() != 2 {
			t.Errorf("%s before the end: %d requests, %d hung up, %v", time.Until(first.Leaf.NotAfter), count(), hungUp.Load(), err)
		}
		target, err := os.Readlink(filepath.Join(dir, "kubelet-client-current.pem"))
		if err != nil || !strings.HasPrefix(filepath.Base(target), "kubelet-client-20") {
			t.Errorf("kubelet-client-current.pem -> %s, %v", target, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Hour) // client-go's manager looks at its context only then
	})
}

// TestExpiredIdentityEndsTheKubelet: nobody signs, and a restart would bootstrap.
func TestExpiredIdentityEndsTheKubelet(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca, err := pki.LoadOrCreateCA(dir, "ca", "ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		client, _ := signing(t, &signer{t: t, ca: ca, life: time.Hour})
		var gone, answers atomic.Bool
		client.PrependReactor("create", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
			return gone.Load(), nil, errors.New("the API server is gone")
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m, err := NewClient(ctx, client, Client{NodeName: "n1", Dir: dir, HangUp: func() {}, Bootstraps: true})
		if err != nil {
			t.Fatal(err)
		}
		m.expired = func(_ context.Context, since time.Time) error {
			if !answers.Load() {
				return nil
			}
			return fmt.Errorf("expired %s", since.UTC().Format(time.RFC3339))
		}
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		time.Sleep(time.Second)
		gone.Store(true)
		time.Sleep(time.Hour + grace - time.Minute)
		synctest.Wait()
		answers.Store(true)
		select {
		case err := <-done:
			t.Errorf("it ended early: %v", err)
		default:
		}
		time.Sleep(2 * time.Minute)
		if err := <-done; err == nil || !strings.HasPrefix(err.Error(), "expired 2000-01-01T01:") {
			t.Errorf("%v", err)
		}
		cancel()
		synctest.Wait()
	})
}

// TestNewCertificateIsShownOnNewConnections starts with a certificate that is about to expire: a
// new one is requested at once, the open watch ends, and the next one is made under the name in the
// new certificate.
func TestNewCertificateIsShownOnNewConnections(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.LoadOrCreateCA(dir, "ca", "ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{t: t, ca: ca, life: time.Hour}
	serials := make(chan *big.Int, 10)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/apis/certificates.k8s.io") {
			serials <- r.TLS.PeerCertificates[0].SerialNumber
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // a watch
			return
		}
		s.ServeHTTP(w, r)
	}))
	srv.TLS = requireClients(t, ca)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)

	p := Paths{Kubeconfig: filepath.Join(dir, "kubelet.conf"), CertDir: filepath.Join(dir, "pki")}
	if err := os.Mkdir(p.CertDir, 0o750); err != nil {
		t.Fatal(err)
	}
	cert, key := almostOver(t, ca, dir)
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: srv.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"a": {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "a"}}, CurrentContext: "x",
	}, p.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cfg, hangUp, err := ClientConfig(ctx, p, "n1", true)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	watch := func() io.ReadCloser {
		body, err := client.CoreV1().RESTClient().Get().AbsPath("/watch").Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	open := watch()
	old := <-serials
	m, err := NewClient(ctx, client, Client{NodeName: "n1", Dir: p.CertDir, HangUp: hangUp})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	if _, err := io.ReadAll(open); err == nil {
		t.Error("the connection with the old certificate was ended as if nothing had been")
	}
	again := watch()
	if serial := <-serials; serial.Cmp(old) == 0 {
		t.Error("the new connection shows the old certificate")
	}
	_ = again.Close()
	if c, err := m.Current(); err != nil || c.Leaf.SerialNumber.Cmp(old) == 0 {
		t.Errorf("%v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	cfg.Transport.(*http.Transport).CloseIdleConnections()
}

// almostOver issues a certificate of an hour with a minute left.
func almostOver(t *testing.T, ca *pki.CA, dir string) (certPEM, keyPEM []byte) {
	t.Helper()
	keyFile := filepath.Join(dir, "old.key")
	key, err := pki.LoadOrCreateKey(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	der, err := ca.Sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: nodeSubject("n1"), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if keyPEM, err = os.ReadFile(keyFile); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM
}

// requireClients returns a TLS configuration that refuses clients without a certificate of the CA.
func requireClients(t *testing.T, ca *pki.CA) *tls.Config {
	t.Helper()
	text, err := ca.Cert()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, MinVersion: tls.VersionTLS12}
}

// TestServingCertificateFollowsTheNodesAddresses, which a cloud controller sets.
func TestServingCertificateFollowsTheNodesAddresses(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca, err := pki.LoadOrCreateCA(dir, "ca", "ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		client, count := signing(t, &signer{t: t, ca: ca, life: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		var addresses atomic.Pointer[[]v1.NodeAddress]
		addresses.Store(&[]v1.NodeAddress{{Type: v1.NodeHostName, Address: "n1"}})
		m, err := NewServer(ctx, client, Serving{NodeName: "n1", Dir: dir, Addresses: func() []v1.NodeAddress { return *addresses.Load() }})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if count() != 0 {
			t.Error("a certificate was asked for before there was an address")
		}
		for i, tell := range [][]v1.NodeAddress{
			{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}, {Type: v1.NodeInternalIP, Address: "192.0.2.1"}},
			{{Type: v1.NodeExternalIP, Address: "198.51.100.1"}, {Type: v1.NodeExternalDNS, Address: "n1.example.com"}},
		} {
			all := slices.Concat(*addresses.Load(), tell)
			addresses.Store(&all)
			time.Sleep(time.Minute)
			synctest.Wait()
			c, err := m.Current()
			if err != nil || count() != i+1 {
				t.Fatalf("%d requests, %v", count(), err)
			}
			for _, a := range all {
				if err := c.Leaf.VerifyHostname(a.Address); err != nil {
					t.Error(err)
				}
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Hour) // client-go's manager looks at its context only then
	})
}
