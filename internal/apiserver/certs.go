package apiserver

import (
	"cmp"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"

	"wherry.dev/internal/pki"
)

// credentials holds the certificates and keys that the server works with.
type credentials struct {
	ca                                   *pki.CA
	authorities                          []*pki.CA // ca and the others, whose certificates are renewed while the server runs
	clientCA                             dynamiccertificates.CAContentProvider
	requestHeader                        *authenticatorfactory.RequestHeaderConfig
	proxyCert, proxyKey                  string // files; empty if others are to trust nobody
	serving                              dynamiccertificates.CertKeyContentProvider
	serviceAccountKey                    crypto.Signer
	serviceAccountKeys                   []crypto.PublicKey // for checking tokens
	kubeletCert, kubeletKey, kubeletRoot string
	peerCA, peerCert, peerKey            string // files; empty if there are no other servers
}

// loadCredentials reads the files of cfg, and creates those that cfg does not name and that do not
// exist yet.
func loadCredentials(cfg *Config, now time.Time) (*credentials, error) {
	if err := pki.RefuseLost(cfg.CertDir, "ca", "kubernetes"); err != nil {
		return nil, err
	}
	if err := pki.RefuseClock(cfg.CertDir, "ca", now); err != nil {
		return nil, err
	}
	ca, err := pki.LoadOrCreateCA(cfg.CertDir, "ca", "kubernetes", now)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	c := &credentials{ca: ca, authorities: []*pki.CA{ca}}
	c.clientCA, err = dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", cmp.Or(cfg.ClientCAFile, ca.CertFile))
	if err != nil {
		return nil, fmt.Errorf("client CA (--client-ca-file): %w", err)
	}
	if err := c.loadFrontProxies(cfg, now); err != nil {
		return nil, err
	}
	if err := c.loadServing(cfg, now); err != nil {
		return nil, err
	}
	if err := c.loadKubelet(cfg, now); err != nil {
		return nil, err
	}
	if err := c.loadPeer(cfg, now); err != nil {
		return nil, err
	}
	key := filepath.Join(cfg.CertDir, "sa.key")
	if cfg.ServiceAccountSigningKeyFile != "" {
		key = cfg.ServiceAccountSigningKeyFile
	}
	_, absent := os.Stat(key)
	c.serviceAccountKey, err = pki.LoadOrCreateKey(key)
	if err != nil {
		return nil, fmt.Errorf("service account signing key: %w", err)
	}
	if errors.Is(absent, fs.ErrNotExist) && !ca.New() {
		klog.Background().Error(absent, "The service account signing key was missing and a new one was generated; tokens signed with the old key are refused")
	}
	c.serviceAccountKeys = []crypto.PublicKey{c.serviceAccountKey.Public()}
	for _, file := range cfg.ServiceAccountKeyFiles {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("service account key (--service-account-key-file): %w", err)
		}
		for _, k := range keys {
			c.serviceAccountKeys = append(c.serviceAccountKeys, k)
		}
	}
	return c, nil
}

// frontProxyUser is the user name in the certificate of a proxy that our front-proxy CA has signed.
const frontProxyUser = "front-proxy-client"

// loadFrontProxies reads the CA of proxies that authenticate users for us. It is a CA of its own,
// because whoever has a certificate of it can act as anybody.
func (c *credentials) loadFrontProxies(cfg *Config, now time.Time) error {
	headers := cfg.RequestHeader
	c.proxyCert, c.proxyKey = cfg.ProxyClientCert, cfg.ProxyClientKey
	if headers.ClientCAFile == "" {
		ca, err := pki.LoadOrCreateCA(cfg.CertDir, "front-proxy-ca", "front-proxy-ca", now)
		if err != nil {
			return fmt.Errorf("front-proxy certificate authority: %w", err)
		}
		headers.ClientCAFile = ca.CertFile
		c.authorities = append(c.authorities, ca)
		if c.proxyCert == "" {
			c.proxyCert, c.proxyKey, err = ca.Issue(cfg.CertDir, "front-proxy-client", pki.Leaf{CommonName: frontProxyUser, Client: true}, now)
			if err != nil {
				return fmt.Errorf("front-proxy certificate: %w", err)
			}
		}
	}
	var err error
	if c.requestHeader, err = headers.ToAuthenticationRequestHeaderConfig(); err != nil {
		return fmt.Errorf("front-proxy CA (--requestheader-client-ca-file): %w", err)
	}
	return c.separateProxies()
}

// separateProxies refuses to take any client for a proxy: who has a certificate of a CA for both could act as anybody.
func (c *credentials) separateProxies() error {
	if len(c.requestHeader.AllowedClientNames.Value()) > 0 {
		return nil
	}
	clients, err := cert.ParseCertsPEM(c.clientCA.CurrentCABundleContent())
	if err != nil {
		return fmt.Errorf("client CA (--client-ca-file): %w", err)
	}
	proxies, err := cert.ParseCertsPEM(c.requestHeader.CAContentProvider.CurrentCABundleContent())
	if err != nil {
		return fmt.Errorf("front-proxy CA (--requestheader-client-ca-file): %w", err)
	}
	for _, ca := range proxies {
		if slices.ContainsFunc(clients, ca.Equal) {
			return errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; " +
				"--requestheader-allowed-names must be specified to ensure regular client certificates cannot set " +
				"authenticating proxy headers for arbitrary users")
		}
	}
	return nil
}

func (c *credentials) loadServing(cfg *Config, now time.Time) error {
	cert, key := cfg.TLSCertFile, cfg.TLSKeyFile
	if cert == "" {
		leaf, err := servingLeaf(cfg)
		if err != nil {
			return err
		}
		if cert, key, err = c.ca.Issue(cfg.CertDir, "apiserver", leaf, now); err != nil {
			return fmt.Errorf("serving certificate: %w", err)
		}
	}
	var err error
	if c.serving, err = dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", cert, key); err != nil {
		return fmt.Errorf("serving certificate (--tls-cert-file, --tls-private-key-file): %w", err)
	}
	return nil
}

func (c *credentials) loadKubelet(cfg *Config, now time.Time) error {
	c.kubeletCert, c.kubeletKey, c.kubeletRoot = cfg.KubeletClientCert, cfg.KubeletClientKey, cfg.KubeletCAFile
	if c.kubeletRoot == "" {
		c.kubeletRoot = c.ca.CertFile
	}
	if c.kubeletCert != "" {
		return nil
	}
	leaf := pki.Leaf{CommonName: kubeletClientUser, Organizations: []string{"system:masters"}, Client: true}
	var err error
	c.kubeletCert, c.kubeletKey, err = c.ca.Issue(cfg.CertDir, "apiserver-kubelet-client", leaf, now)
	if err != nil {
		return fmt.Errorf("client certificate for kubelets: %w", err)
	}
	return nil
}

// kubeletClientUser is the API server's user name towards kubelets.
const kubeletClientUser = "kube-apiserver-kubelet-client"

// servingLeaf returns the serving certificate's names, under which clients in and around the
// cluster reach us.
func servingLeaf(cfg *Config) (pki.Leaf, error) {
	service, err := firstServiceIP(cfg.ServiceCIDRs[0])
	if err != nil {
		return pki.Leaf{}, err
	}
	leaf := pki.Leaf{
		CommonName: "kube-apiserver",
		Server:     true,
		DNSNames: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc." + cfg.ClusterDomain, "localhost",
		},
		IPs: []net.IP{service, net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	addIP := func(ip net.IP) {
		for _, have := range leaf.IPs {
			if have.Equal(ip) {
				return
			}
		}
		leaf.IPs = append(leaf.IPs, ip)
	}
	addIP(cfg.AdvertiseAddress)
	if !cfg.BindAddress.IsUnspecified() {
		addIP(cfg.BindAddress)
	}
	for _, name := range cfg.ServingNames {
		if ip := net.ParseIP(name); ip != nil {
			addIP(ip)
			continue
		}
		leaf.DNSNames = append(leaf.DNSNames, name)
	}
	return leaf, nil
}

// firstServiceIP returns the cluster IP of default/kubernetes.
func firstServiceIP(cidr *net.IPNet) (net.IP, error) {
	ip := append(net.IP(nil), cidr.IP.Mask(cidr.Mask)...)
	ip[len(ip)-1]++
	if !cidr.Contains(ip) {
		return nil, fmt.Errorf("--service-cluster-ip-range %s has no first address", cidr)
	}
	return ip, nil
}
