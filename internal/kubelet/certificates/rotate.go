package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"

	"wherry.dev/internal/kubelet/metrics"
)

// Manager keeps one certificate valid: it requests a new one after 70 to 90 % of the old one's
// lifetime, or at once if there is none, and writes it to the store.
type Manager struct {
	manager certificate.Manager
	files   certificate.Store
	renewed chan struct{} // capacity 1
	// expired, if not nil, is called once the certificate has been expired for grace. An error from
	// it ends Run.
	expired func(ctx context.Context, since time.Time) error
}

// grace is how long a kubelet carries on after its certificate has expired (as upstream).
const grace = 5 * time.Minute

// again is the pause before the API server is asked once more with an expired certificate.
const again = 30 * time.Second

// Client configures the manager of the client certificate.
type Client struct {
	NodeName string
	// Dir is where kubelet-client-current.pem is written.
	Dir string
	// HangUp closes the connections that were made with an older certificate.
	HangUp func()
	// Bootstraps: a restart gets a new certificate if this one has expired.
	Bootstraps bool
}

// NewClient returns the manager of the client certificate, for a client that ClientConfig returned
// with rotate.
func NewClient(ctx context.Context, client kubernetes.Interface, c Client) (*Manager, error) {
	m, err := start(ctx, client, c.Dir, "", "", c.HangUp, certificate.Config{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Name: clientName,
		Template:                &x509.CertificateRequest{Subject: nodeSubject(c.NodeName)},
		GetUsages:               certificate.DefaultKubeletClientGetUsages,
		CertificateRenewFailure: metrics.ClientRenewErrors,
	})
	if err == nil && c.Bootstraps {
		m.expired = func(ctx context.Context, since time.Time) error { return lostIdentity(ctx, client, since) }
	}
	return m, err
}

// lostIdentity returns an error if the API server answers: then only a bootstrap, at the next
// start, can get a certificate again. If it does not answer, a restart would not help.
func lostIdentity(ctx context.Context, client kubernetes.Interface, since time.Time) error {
	var answered apierrors.APIStatus
	err := client.Discovery().RESTClient().Get().AbsPath("/healthz").Timeout(10 * time.Second).Do(ctx).Error()
	if err != nil && !errors.As(err, &answered) {
		return nil
	}
	return fmt.Errorf("the client certificate expired at %s and was not renewed; the next start requests a new one with --bootstrap-kubeconfig", since.Format(time.RFC3339))
}

// Serving configures the manager of the serving certificate.
type Serving struct {
	NodeName string
	DNSNames []string
	IPs      []net.IP
	// Addresses, if not nil, is called for the names instead, repeatedly: with a cloud
	// controller they come later, and change. Without an address nothing is requested.
	Addresses func() []v1.NodeAddress
	// Dir is where kubelet-server-current.pem is written; CertFile and KeyFile are used until then.
	Dir, CertFile, KeyFile string
}

// NewServer returns the manager of the serving certificate.
func NewServer(ctx context.Context, client kubernetes.Interface, s Serving) (*Manager, error) {
	cfg := certificate.Config{
		SignerName: certificatesv1.KubeletServingSignerName, Name: serverName,
		GetUsages:               certificate.DefaultKubeletServingGetUsages,
		CertificateRotation:     metrics.ServerRotation,
		CertificateRenewFailure: metrics.ServerRenewErrors,
	}
	if s.Addresses == nil {
		cfg.Template = &x509.CertificateRequest{Subject: nodeSubject(s.NodeName), DNSNames: s.DNSNames, IPAddresses: s.IPs}
	} else {
		cfg.GetTemplate = func() *x509.CertificateRequest {
			names, ips := namesOf(s.Addresses())
			if len(ips) == 0 {
				return nil
			}
			return &x509.CertificateRequest{Subject: nodeSubject(s.NodeName), DNSNames: names, IPAddresses: ips}
		}
	}
	return start(ctx, client, s.Dir, s.CertFile, s.KeyFile, func() {}, cfg)
}

// namesOf sorts a node's addresses, each once, into names and IP addresses.
func namesOf(addresses []v1.NodeAddress) (names []string, ips []net.IP) {
	for _, a := range addresses {
		ip := net.ParseIP(a.Address)
		switch {
		case a.Address == "":
		case ip != nil && (a.Type == v1.NodeHostName || a.Type == v1.NodeInternalIP || a.Type == v1.NodeExternalIP):
			if !slices.ContainsFunc(ips, ip.Equal) {
				ips = append(ips, ip)
			}
		case a.Type == v1.NodeHostName || a.Type == v1.NodeInternalDNS || a.Type == v1.NodeExternalDNS:
			if !slices.Contains(names, a.Address) {
				names = append(names, a.Address)
			}
		}
	}
	slices.Sort(names)
	slices.SortFunc(ips, func(a, b net.IP) int { return strings.Compare(a.String(), b.String()) })
	return names, ips
}

func start(ctx context.Context, client kubernetes.Interface, dir, certFile, keyFile string, renewed func(), cfg certificate.Config) (*Manager, error) {
	files, err := openStore(ctx, cfg.Name, dir, certFile, keyFile)
	if err != nil {
		return nil, err
	}
	m := &Manager{files: files, renewed: make(chan struct{}, 1)}
	cfg.CertificateStore, cfg.Ctx = store{Store: files, updated: func() {
		renewed()
		select {
		case m.renewed <- struct{}{}:
		default:
		}
	}}, &ctx
	cfg.ClientsetFn = func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil }
	if m.manager, err = certificate.NewManager(&cfg); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", cfg.Name, err)
	}
	return m, nil
}

// store signals when a certificate has been put into it.
type store struct {
	certificate.Store
	updated func()
}

// Update implements certificate.Store.
func (s store) Update(certPEM, keyPEM []byte) (*tls.Certificate, error) {
	c, err := s.Store.Update(certPEM, keyPEM)
	if err == nil {
		s.updated()
	}
	return c, err
}

// Run renews the certificate until the context, which must be the constructor's, ends.
func (m *Manager) Run(ctx context.Context) error {
	m.manager.Start()
	defer m.manager.Stop()
	if m.expired == nil {
		<-ctx.Done()
		return nil
	}
	for {
		t := time.NewTimer(m.untilLost(time.Now()))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-m.renewed:
			t.Stop()
		case <-t.C:
			if since, ok := m.notAfter(); ok && !time.Now().Before(since.Add(grace)) {
				if err := m.expired(ctx, since); err != nil && ctx.Err() == nil {
					return err
				}
			}
		}
	}
}

// untilLost returns how long it takes until the certificate has been expired for too long, or until
// another look is worthwhile.
func (m *Manager) untilLost(now time.Time) time.Duration {
	if since, ok := m.notAfter(); ok {
		return max(since.Add(grace).Sub(now), again)
	}
	return grace
}

// notAfter returns when the newest certificate expires; the library's manager does not say once
// that has passed.
func (m *Manager) notAfter() (time.Time, bool) {
	c, err := m.files.Current()
	if err != nil || c.Leaf == nil {
		return time.Time{}, false
	}
	return c.Leaf.NotAfter, true
}

// Current returns the certificate that is valid now.
func (m *Manager) Current() (*tls.Certificate, error) {
	if c := m.manager.Current(); c != nil {
		return c, nil
	}
	return nil, errors.New("no serving certificate available for the kubelet: is its certificate signing request approved? (kubectl get csr)")
}

// TTL returns how many seconds the certificate is still valid; false if there is none.
func (m *Manager) TTL(now time.Time) (float64, bool) {
	c := m.manager.Current()
	if c == nil || c.Leaf == nil {
		return 0, false
	}
	return c.Leaf.NotAfter.Sub(now).Seconds(), true
}
