package certificates

import (
	"context"
	"crypto"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
)

const (
	clientName = "kubelet-client"
	serverName = "kubelet-server"
	// newKey is the file with the key of a request that has not been answered, so that a restart
	// uses the same key.
	newKey = "kubelet-client.key.tmp"
	// approvalTimeout is how long a request may wait for approval.
	approvalTimeout = time.Hour
)

// Paths are the locations of a client's credentials.
type Paths struct {
	// Kubeconfig to use, and to write if there is no valid one.
	Kubeconfig string
	// Bootstrap is the kubeconfig used to request a certificate; empty for no bootstrap.
	Bootstrap string
	// CertDir is where kubelet-client-current.pem is written.
	CertDir string
	// Dial, if not nil, makes the connections of a client that rotates its certificate, and Verify changes how it checks the
	// server's.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Verify func(*tls.Config)
}

// ClientConfig returns how to reach the API server. Without a valid kubeconfig it requests a
// certificate as the bootstrap user, waits until the request is approved and signed, and writes the
// kubeconfig. With rotate, each new connection uses the certificate that kubelet-client-current.pem
// has at that time, and hangUp closes the connections that were made with an older one.
func ClientConfig(ctx context.Context, p Paths, nodeName string, rotate bool) (cfg *rest.Config, hangUp func(), err error) {
	if p.Bootstrap != "" && !valid(ctx, p.Kubeconfig) {
		if err := bootstrap(ctx, p, nodeName); err != nil {
			return nil, nil, fmt.Errorf("bootstrap with %s: %w", p.Bootstrap, err)
		}
	}
	cfg, err = clientcmd.BuildConfigFromFlags("", p.Kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	if !rotate {
		return cfg, func() {}, nil
	}
	return useStore(ctx, cfg, p)
}

// valid reports whether a kubeconfig has a client certificate that has not expired.
func valid(ctx context.Context, kubeconfig string) bool {
	log := klog.FromContext(ctx)
	if _, err := os.Stat(kubeconfig); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		log.Error(err, "Cannot use the kubeconfig, bootstrapping again", "kubeconfig", kubeconfig)
		return false
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		log.Error(err, "Cannot read the kubeconfig's certificate, bootstrapping again", "kubeconfig", kubeconfig)
		return false
	}
	certs, err := cert.ParseCertsPEM(cfg.CertData)
	if err != nil {
		log.Error(err, "The kubeconfig has no client certificate, bootstrapping again", "kubeconfig", kubeconfig)
		return false
	}
	for _, c := range certs {
		if time.Now().After(c.NotAfter) {
			log.Info("The client certificate has expired, bootstrapping again", "kubeconfig", kubeconfig, "notAfter", c.NotAfter)
			return false
		}
	}
	return true
}

// useStore makes a client read its certificate from the store. A pair in the kubeconfig is first
// moved there.
func useStore(ctx context.Context, cfg *rest.Config, p Paths) (*rest.Config, func(), error) {
	store, err := openStore(ctx, clientName, p.CertDir, "", "")
	if err != nil {
		return nil, nil, err
	}
	if cfg.CertFile != store.CurrentPath() {
		if old, err := store.Current(); err != nil || old.Leaf != nil && time.Now().After(old.Leaf.NotAfter) {
			loaded := rest.CopyConfig(cfg)
			if err := rest.LoadTLSFiles(loaded); err != nil {
				return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
			}
			if len(loaded.CertData) == 0 {
				return cfg, func() {}, nil // a token, or something else that we do not rotate
			}
			if err := keep(store, loaded.CertData, loaded.KeyData); err != nil {
				return nil, nil, fmt.Errorf("client certificate: %w", err)
			}
		}
	}
	return rotating(cfg, store, p)
}

// rotating replaces a client's transport with one that presents the store's certificate.
// client-go's own would notice a new file only after five minutes, and the API server refuses
// requests on a connection whose certificate has expired meanwhile.
func rotating(cfg *rest.Config, store certificate.Store, p Paths) (*rest.Config, func(), error) {
	cfg = rest.CopyConfig(cfg)
	cfg.CertFile, cfg.KeyFile, cfg.CertData, cfg.KeyData = "", "", nil, nil
	secure, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	if secure == nil {
		secure = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	secure.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return store.Current() }
	dial := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	if p.Dial != nil {
		dial = p.Dial
	}
	if p.Verify != nil {
		p.Verify(secure)
	}
	dialer := connrotation.NewDialer(dial)
	cfg.Transport = utilnet.SetTransportDefaults(&http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25,
		TLSClientConfig: secure, DialContext: dialer.DialContext,
	})
	cfg.TLSClientConfig = rest.TLSClientConfig{}
	return cfg, dialer.CloseAll, nil
}

// keep puts a pair into the store, which needs certificates and key separately even if they came in
// one file.
func keep(store certificate.Store, certData, keyData []byte) error {
	pair, err := tls.X509KeyPair(certData, keyData)
	if err != nil {
		return err
	}
	var certs []byte
	for _, der := range pair.Certificate {
		certs = append(certs, pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})...)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(pair.PrivateKey)
	if err != nil {
		return err
	}
	_, err = store.Update(certs, key)
	return err
}

func openStore(ctx context.Context, name, dir, certFile, keyFile string) (certificate.FileStore, error) {
	store, err := certificate.NewFileStoreWithLogger(klog.FromContext(ctx), name, dir, dir, certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate store %s: %w", dir, err)
	}
	return store, nil
}

// bootstrap requests a client certificate, waits for it, and writes the kubeconfig.
func bootstrap(ctx context.Context, p Paths, nodeName string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", p.Bootstrap)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.CertDir, 0o750); err != nil {
		return err
	}
	store, err := openStore(ctx, clientName, p.CertDir, "", "")
	if err != nil {
		return err
	}
	keyFile := filepath.Join(p.CertDir, newKey)
	key, _, err := keyutil.LoadOrGenerateKeyFile(keyFile)
	if err != nil {
		return fmt.Errorf("private key: %w", err)
	}
	signed, err := request(ctx, client, key, nodeName)
	if err != nil {
		return err
	}
	if _, err := store.Update(signed, key); err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	if err := writeKubeconfig(cfg, p.Kubeconfig, store.CurrentPath()); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return os.Remove(keyFile)
}

// request sends a certificate signing request and waits for its certificate. The request's name is
// derived from its content, so that a second attempt finds the first one's request.
func request(ctx context.Context, client kubernetes.Interface, keyPEM []byte, nodeName string) ([]byte, error) {
	parsed, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("private key of type %T cannot sign", parsed)
	}
	subject := nodeSubject(nodeName)
	body, err := cert.MakeCSR(parsed, &subject, nil, nil)
	if err != nil {
		return nil, err
	}
	usages := certificate.DefaultKubeletClientGetUsages(parsed)
	name, err := requestName(signer.Public(), subject, usages)
	if err != nil {
		return nil, err
	}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, body, name, certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, parsed)
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).Info("Waiting for the client certificate; its request may need approval (kubectl certificate approve)", "csr", name, "uid", uid)
	ctx, cancel := context.WithTimeout(ctx, approvalTimeout)
	defer cancel()
	return csr.WaitForCertificate(ctx, client, name, uid)
}

// nodeSubject returns the subject of a node's certificates.
func nodeSubject(nodeName string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}}
}

// requestName returns the name of a request: a digest of everything that it asks for.
func requestName(public crypto.PublicKey, subject pkix.Name, usages []certificatesv1.KeyUsage) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", err
	}
	h := sha512.New512_256()
	enc := base64.RawURLEncoding
	parts := append([]string{string(der), subject.CommonName}, subject.Organization...)
	for _, u := range usages {
		parts = append(parts, string(u))
	}
	for _, p := range parts {
		// The separator is not part of the encoding, so that no two lists have the same digest.
		_, _ = fmt.Fprintf(h, "%s|", enc.EncodeToString([]byte(p)))
	}
	return "node-csr-" + enc.EncodeToString(h.Sum(nil)), nil
}

// writeKubeconfig writes a kubeconfig for the same server with the certificate at path.
func writeKubeconfig(from *rest.Config, to, path string) error {
	cluster := &clientcmdapi.Cluster{
		Server: from.Host, InsecureSkipTLSVerify: from.Insecure, TLSServerName: from.ServerName,
		CertificateAuthority: from.CAFile, CertificateAuthorityData: from.CAData,
	}
	if cluster.CertificateAuthority != "" {
		cluster.CertificateAuthorityData = nil
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"default-cluster": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"default-auth": {ClientCertificate: path, ClientKey: path}},
		Contexts:       map[string]*clientcmdapi.Context{"default-context": {Cluster: "default-cluster", AuthInfo: "default-auth", Namespace: "default"}},
		CurrentContext: "default-context",
	}, to)
}
