package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"wherry.dev/internal/pki"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) {
	// The second handler slows errors down with a clock that all bubbles of synctest share.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	// client-go watches the files of client certificates that are not rotated for as long as the
	// process lives.
	os.Exit(leaks.Watch(m, goleak.IgnoreAnyFunction("k8s.io/client-go/transport.(*dynamicClientCert).run"),
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.(*Backoff).StepWithReset")).Run())
}

// signer is an API server that knows only certificate signing requests, and signs each at once.
type signer struct {
	t   *testing.T
	ca  *pki.CA
	mu  sync.Mutex
	got []certificatesv1.CertificateSigningRequest
	// life is the lifetime of the certificates.
	life time.Duration
}

func (s *signer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			s.t.Error(err)
		}
	}
	if r.Method == http.MethodPost {
		var req certificatesv1.CertificateSigningRequest
		body, err := io.ReadAll(r.Body)
		if err != nil {
			s.t.Error(err)
		}
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &req); err != nil {
			s.t.Error(err)
			return
		}
		if req.Name == "" {
			req.Name = req.GenerateName + "1"
		}
		req.UID = types.UID(req.Name)
		req.Status.Certificate = s.sign(req.Spec.Request)
		req.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		s.got = append(s.got, req)
		req.APIVersion, req.Kind = "certificates.k8s.io/v1", "CertificateSigningRequest"
		answer(req)
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/apis/certificates.k8s.io/v1/certificatesigningrequests/"); ok {
		for _, req := range s.got {
			if req.Name == name {
				answer(req)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/certificatesigningrequests") {
		list := certificatesv1.CertificateSigningRequestList{TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequestList"}}
		for _, req := range s.got {
			if sel := r.URL.Query().Get("fieldSelector"); sel == "" || sel == "metadata.name="+req.Name {
				list.Items = append(list.Items, req)
			}
		}
		answer(list)
		return
	}
	answer(map[string]any{})
}

func (s *signer) sign(data []byte) []byte {
	block, _ := pem.Decode(data)
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	der, err := s.ca.Sign(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: req.Subject, DNSNames: req.DNSNames, IPAddresses: req.IPAddresses,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(s.life), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, req.PublicKey)
	if err != nil {
		s.t.Error(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newSigner(t *testing.T) (*signer, Paths) {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.LoadOrCreateCA(dir, "ca", "ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{t: t, ca: ca, life: time.Hour}
	srv := httptest.NewTLSServer(s)
	t.Cleanup(srv.Close)
	p := Paths{Kubeconfig: filepath.Join(dir, "kubelet.conf"), Bootstrap: filepath.Join(dir, "bootstrap.conf"), CertDir: filepath.Join(dir, "pki")}
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: srv.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"a": {Token: "bootstrap"}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "a"}}, CurrentContext: "x",
	}, p.Bootstrap); err != nil {
		t.Fatal(err)
	}
	return s, p
}

func TestBootstrap(t *testing.T) {
	s, p := newSigner(t)
	cfg, _, err := ClientConfig(t.Context(), p, "n1", true)
	if err != nil {
		t.Fatal(err)
	}
	current := filepath.Join(p.CertDir, "kubelet-client-current.pem")
	if cfg.BearerToken != "" || cfg.CertFile != "" || cfg.CertData != nil || cfg.Transport == nil {
		t.Errorf("%+v", cfg)
	}
	written, err := clientcmd.LoadFromFile(p.Kubeconfig)
	if err != nil || written.AuthInfos["default-auth"].ClientCertificate != current {
		t.Errorf("%+v, %v", written, err)
	}
	pair, err := tls.LoadX509KeyPair(current, current)
	if err != nil || pair.Leaf.Subject.CommonName != "system:node:n1" || pair.Leaf.Subject.Organization[0] != "system:nodes" {
		t.Errorf("%v, %v", pair.Leaf, err)
	}
	if r := s.got[0]; r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || !strings.HasPrefix(r.Name, "node-csr-") || len(r.Spec.Usages) != 2 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(p.CertDir, newKey)); !os.IsNotExist(err) {
		t.Errorf("the key of the request is still there: %v", err)
	}
	if _, _, err := ClientConfig(t.Context(), p, "n1", true); err != nil || len(s.got) != 1 {
		t.Errorf("it asked again: %d, %v", len(s.got), err)
	}
}

func TestExpiredCertificateBootstrapsAgain(t *testing.T) {
	s, p := newSigner(t)
	s.life = -time.Second
	if _, _, err := ClientConfig(t.Context(), p, "n1", false); err != nil {
		t.Fatal(err)
	}
	s.life = time.Hour
	p.CertDir = filepath.Join(t.TempDir(), "pki") // the store names files by the second
	if _, _, err := ClientConfig(t.Context(), p, "n1", false); err != nil || len(s.got) != 2 {
		t.Fatalf("%d requests, %v", len(s.got), err)
	}
}

func TestPairInTheKubeconfigIsRotatedToo(t *testing.T) {
	s, p := newSigner(t)
	if _, _, err := ClientConfig(t.Context(), p, "n1", false); err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.LoadFromFile(p.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmdapi.FlattenConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.WriteToFile(*cfg, p.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	p.Bootstrap, p.CertDir = "", filepath.Join(t.TempDir(), "pki")
	if err := os.Mkdir(p.CertDir, 0o750); err != nil {
		t.Fatal(err)
	}
	got, _, err := ClientConfig(t.Context(), p, "n1", true)
	if err != nil || got.Transport == nil || got.CertData != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	current := filepath.Join(p.CertDir, "kubelet-client-current.pem")
	if _, err := tls.LoadX509KeyPair(current, current); err != nil || len(s.got) != 1 {
		t.Errorf("%v", err)
	}
}

func TestServingCertificateIsRequestedAndUsed(t *testing.T) {
	s, p := newSigner(t)
	if err := os.Mkdir(p.CertDir, 0o750); err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", p.Bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(rest.CopyConfig(cfg))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	m, err := NewServer(ctx, client, Serving{NodeName: "n1", DNSNames: []string{"n1"}, IPs: []net.IP{net.IPv4(192, 0, 2, 1)}, Dir: p.CertDir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Current(); err == nil || !strings.Contains(err.Error(), "kubectl get csr") {
		t.Errorf("before it is signed: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err = m.Current(); err == nil {
			break
		}
	}
	c, err := m.Current()
	if err != nil {
		t.Fatal(err)
	}
	if c.Leaf.VerifyHostname("n1") != nil || c.Leaf.VerifyHostname("192.0.2.1") != nil {
		t.Errorf("%v", c.Leaf)
	}
	if ttl, ok := m.TTL(time.Now()); !ok || ttl < 3000 || ttl > 3600 {
		t.Errorf("ttl %v", ttl)
	}
	s.mu.Lock()
	if r := s.got[0]; r.Spec.SignerName != certificatesv1.KubeletServingSignerName {
		t.Errorf("%+v", r.Spec)
	}
	s.mu.Unlock()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
