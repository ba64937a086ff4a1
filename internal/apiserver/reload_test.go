package apiserver

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"wherry.dev/internal/apiserver/bootstrap"
	"wherry.dev/internal/pki"
)

// Whoever renews the files of --tls-cert-file and --client-ca-file does not have to start the server again, as upstream.
func TestFilesOfCertificatesAreReadAgain(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	authority := func(name string) *pki.CA {
		ca, err := pki.LoadOrCreateCA(filepath.Join(dir, name), name, name, now)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	issue := func(ca *pki.CA, dir, name string, leaf pki.Leaf) (cert, key string) {
		cert, key, err := ca.Issue(dir, name, leaf, now)
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	clients, others, servers := authority("clients"), authority("others"), authority("servers")
	serving := pki.Leaf{CommonName: "first", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}
	cert, key := issue(servers, dir, "serving", serving)
	trusted := filepath.Join(dir, "trusted.crt")
	copyFile := func(from, to string) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(clients.CertFile, trusted)
	s := start(t, func(c *Config) { c.TLSCertFile, c.TLSKeyFile, c.ClientCAFile = cert, key, trusted })

	served := func() string {
		conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the name is all that is asked
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	whoever := func(ca *pki.CA) error { // a client of that authority's
		cert, key := issue(ca, filepath.Dir(ca.CertFile), "admin", pki.Leaf{CommonName: "admin", Organizations: []string{"system:masters"}, Client: true})
		client, err := kubernetes.NewForConfig(&rest.Config{
			Host: "https://" + s.Addr().String(), TLSClientConfig: rest.TLSClientConfig{CertFile: cert, KeyFile: key, CAFile: servers.CertFile},
		})
		if err != nil {
			return err
		}
		_, err = client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	}
	if got := served(); got != "first" {
		t.Errorf("it serves with the certificate of %q", got)
	}
	if err := whoever(clients); err != nil {
		t.Error(err)
	}
	if whoever(others) == nil {
		t.Error("a client of an authority that is not trusted was let in")
	}

	next, nextKey := issue(servers, filepath.Join(dir, "next"), "serving", pki.Leaf{CommonName: "second", DNSNames: serving.DNSNames, IPs: serving.IPs, Server: true})
	move(nextKey, key)
	move(next, cert)
	eventually(t, func() error {
		if got := served(); got != "second" {
			return fmt.Errorf("it still serves with the certificate of %q", got)
		}
		return nil
	})
	copyFile(others.CertFile, trusted+".new")
	move(trusted+".new", trusted)
	eventually(t, func() error { return whoever(others) })
	if whoever(clients) == nil {
		t.Error("a client of an authority that is no longer trusted was let in")
	}
	eventually(t, func() error {
		m, err := admin(t, s).CoreV1().ConfigMaps("kube-system").Get(t.Context(), bootstrap.TrustMap, metav1.GetOptions{})
		if err != nil {
			return err
		}
		told, err := certutil.ParseCertsPEM([]byte(m.Data["client-ca-file"]))
		if err == nil && len(told) != 2 {
			err = fmt.Errorf("others are told of %d authorities", len(told))
		}
		return err
	})
}
