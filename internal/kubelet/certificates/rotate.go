package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"

	"wherry.dev/internal/kubelet/metrics"
)

// Manager keeps one certificate valid: it asks for a new one after 70 to 90 % of the
// old one's time, or at once when there is none, and writes it to the store.
type Manager struct{ manager certificate.Manager }

// NewClient returns the manager of the client certificate, for a client that
// ClientConfig made with rotate.
func NewClient(ctx context.Context, client kubernetes.Interface, nodeName, dir string) (*Manager, error) {
	return start(ctx, client, dir, "", "", certificate.Config{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Name: clientName,
		Template:                &x509.CertificateRequest{Subject: nodeSubject(nodeName)},
		GetUsages:               certificate.DefaultKubeletClientGetUsages,
		CertificateRenewFailure: metrics.ClientRenewErrors,
	})
}

// Serving says what a serving certificate is for.
type Serving struct {
	NodeName string
	DNSNames []string
	IPs      []net.IP
	// Dir gets kubelet-server-current.pem; CertFile and KeyFile are used until then.
	Dir, CertFile, KeyFile string
}

// NewServer returns the manager of the serving certificate.
func NewServer(ctx context.Context, client kubernetes.Interface, s Serving) (*Manager, error) {
	return start(ctx, client, s.Dir, s.CertFile, s.KeyFile, certificate.Config{
		SignerName: certificatesv1.KubeletServingSignerName, Name: serverName,
		Template:                &x509.CertificateRequest{Subject: nodeSubject(s.NodeName), DNSNames: s.DNSNames, IPAddresses: s.IPs},
		GetUsages:               certificate.DefaultKubeletServingGetUsages,
		CertificateRotation:     metrics.ServerRotation,
		CertificateRenewFailure: metrics.ServerRenewErrors,
	})
}

func start(ctx context.Context, client kubernetes.Interface, dir, certFile, keyFile string, cfg certificate.Config) (*Manager, error) {
	store, err := openStore(ctx, cfg.Name, dir, certFile, keyFile)
	if err != nil {
		return nil, err
	}
	cfg.CertificateStore, cfg.Ctx = store, &ctx
	cfg.ClientsetFn = func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil }
	m, err := certificate.NewManager(&cfg)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", cfg.Name, err)
	}
	return &Manager{m}, nil
}

// Run renews the certificate until the context, which is that of the constructor, ends.
func (m *Manager) Run(ctx context.Context) error {
	m.manager.Start()
	<-ctx.Done()
	m.manager.Stop()
	return nil
}

// Current returns the certificate that is valid now.
func (m *Manager) Current() (*tls.Certificate, error) {
	if c := m.manager.Current(); c != nil {
		return c, nil
	}
	return nil, errors.New("no serving certificate available for the kubelet: is its certificate signing request approved? (kubectl get csr)")
}

// TTL is how many seconds the certificate is still valid; false without one.
func (m *Manager) TTL(now time.Time) (float64, bool) {
	c := m.manager.Current()
	if c == nil || c.Leaf == nil {
		return 0, false
	}
	return c.Leaf.NotAfter.Sub(now).Seconds(), true
}
