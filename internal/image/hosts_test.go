package image_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
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

	"golang.org/x/sys/unix"

	"wherry.dev/internal/image"
)

// certs is a folder of registry configuration in containerd's layout.
type certs string

func newCerts(t *testing.T) certs { t.Helper(); return certs(t.TempDir()) }

func (c certs) add(t *testing.T, host, file, content string) string {
	t.Helper()
	path := filepath.Join(string(c), host, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// underscored returns the folder name of a host with a port, for where a colon is not possible.
func underscored(host string) string {
	h, port, _ := strings.Cut(host, ":")
	return h + "_" + port + "_"
}

func (c certs) store(t *testing.T, more ...certs) *image.Store {
	t.Helper()
	dirs := []string{string(c)}
	for _, m := range more {
		dirs = append(dirs, string(m))
	}
	return openWith(t, t.TempDir(), image.Config{CertsDirs: dirs})
}

func TestMirrors(t *testing.T) {
	for name, c := range map[string]struct {
		toml   string // MIRROR and ORIGIN stand for their addresses
		dir    string
		digest bool // pull by digest
		mirror func(*server)
		want   string // who serves the layers
	}{
		"used":                {toml: `server = "http://ORIGIN"` + "\n" + `[host."http://MIRROR"]`, want: "mirror"},
		"host without server": {toml: `[host."http://MIRROR"]`, want: "mirror"},
		"the default folder":  {dir: "_default", toml: `[host."http://MIRROR"]`, want: "mirror"},
		"fails, so the server is asked": {
			toml: `server = "http://ORIGIN"` + "\n" + `[host."http://MIRROR"]`, want: "origin",
			mirror: func(m *server) {
				m.On(func(w http.ResponseWriter, _ *http.Request) bool { http.NotFound(w, nil); return true })
			},
		},
		"is down":                         {toml: `server = "http://ORIGIN"` + "\n" + `[host."http://127.0.0.1:1"]`, want: "origin"},
		"may not resolve tags":            {toml: `server = "http://ORIGIN"` + "\n" + `[host."http://MIRROR"]` + "\ncapabilities = [\"pull\"]", want: "mirror"},
		"several, in order":               {toml: `[host."http://127.0.0.1:1"]` + "\n" + `[host."http://MIRROR"]` + "\n" + `[host."http://ORIGIN"]`, want: "mirror"},
		"its own path":                    {toml: `[host."http://MIRROR/proxy/v2"]` + "\noverride_path = true", want: "mirror", mirror: underPath("/proxy/v2", "/v2")},
		"a path before the API's":         {toml: `[host."http://MIRROR/proxy"]`, want: "mirror", mirror: underPath("/proxy/v2", "/v2")},
		"header":                          {toml: `[host."http://MIRROR"]` + "\n[host.\"http://MIRROR\".header]\nx-key = \"open\"", want: "mirror", mirror: wantHeader},
		"by digest, by one that may pull": {digest: true, toml: `[host."http://MIRROR"]` + "\ncapabilities = [\"pull\"]", want: "mirror"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			origin, mirror, dir := plain(t), plain(t), newCerts(t)
			img := twoLayers(t)
			ref := origin.Push(t, "demo:1", img)
			mirror.Push(t, "demo:1", img)
			if c.mirror != nil {
				c.mirror(mirror)
			}
			if c.dir == "" {
				c.dir = underscored(origin.Host)
			}
			dir.add(t, c.dir, "hosts.toml", strings.NewReplacer("ORIGIN", origin.Host, "MIRROR", mirror.Host).Replace(c.toml))
			if c.digest {
				d, err := img.Digest()
				if err != nil {
					t.Fatal(err)
				}
				ref = origin.Host + "/demo@" + d.String()
			}
			s := dir.store(t)
			pull(t, s, ref)
			got := "origin"
			if origin.Fetched(digests(t, img)[0]) == 0 {
				got = "mirror"
			}
			if got != c.want {
				t.Errorf("the layers came from the %s", got)
			}
		})
	}
}

// underPath serves the API only below another path.
func underPath(from, to string) func(*server) {
	return func(m *server) {
		m.On(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.URL.Path, from) {
				http.NotFound(w, r)
				return true
			}
			r.URL.Path = to + strings.TrimPrefix(r.URL.Path, from)
			return false
		})
	}
}

func wantHeader(m *server) {
	m.On(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("X-Key") == "open" {
			return false
		}
		http.Error(w, "no", http.StatusForbidden)
		return true
	})
}

// A mirror learns which registry a request is for, and our name.
func TestMirrorLearnsTheNamespace(t *testing.T) {
	mirror, dir := plain(t), newCerts(t)
	mirror.Push(t, "team/demo:1", twoLayers(t))
	var mu sync.Mutex
	namespaces, agents := map[string]bool{}, map[string]bool{}
	mirror.On(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		namespaces[r.URL.Query().Get("ns")] = true
		agents[strings.Split(r.UserAgent(), "/")[0]] = true
		return false
	})
	dir.add(t, "registry.example", "hosts.toml", `server = "https://registry.example"`+"\n"+`[host."http://`+mirror.Host+`"]`)
	pull(t, dir.store(t), "registry.example/team/demo:1")
	mu.Lock()
	defer mu.Unlock()
	if len(namespaces) != 1 || !namespaces["registry.example"] || len(agents) != 1 || !agents["wherry"] {
		t.Errorf("namespaces %v, agents %v", namespaces, agents)
	}
}

func TestFirstFolderThatKnowsARegistryCounts(t *testing.T) {
	origin, mirror := plain(t), plain(t)
	img := twoLayers(t)
	ref := origin.Push(t, "demo:1", img)
	mirror.Push(t, "demo:1", img)
	ours, theirs := newCerts(t), newCerts(t)
	theirs.add(t, underscored(origin.Host), "hosts.toml", `[host."http://`+mirror.Host+`"]`)
	pull(t, ours.store(t, theirs), ref)
	if mirror.Fetched(digests(t, img)[0]) != 1 {
		t.Error("the second folder was not looked at")
	}
	ours.add(t, underscored(origin.Host), "hosts.toml", `server = "http://`+origin.Host+`"`)
	pull(t, ours.store(t, theirs), ref)
	if origin.Fetched(digests(t, img)[0]) != 1 {
		t.Error("the second folder was looked at")
	}
}

func TestBrokenHostsFileIsAnError(t *testing.T) {
	srv, dir := plain(t), newCerts(t)
	path := dir.add(t, underscored(srv.Host), "hosts.toml", "[host.\n")
	_, err := dir.store(t).Pull(t.Context(), srv.Push(t, "demo:1", twoLayers(t)), image.PullOptions{})
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// pki is a CA with a server's and a client's certificate.
type pki struct {
	ca, client, clientKey string // PEM
	server                tls.Certificate
	pool                  *x509.CertPool
}

func newPKI(t *testing.T) pki {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := func(n int64, cn string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: cn}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		}
	}
	root := template(1, "test CA")
	root.IsCA, root.KeyUsage = true, x509.KeyUsageCertSign
	sign := func(c *x509.Certificate, key *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, c, root, &key.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	pemOf := func(kind string, der []byte) string {
		var b bytes.Buffer
		if err := pem.Encode(&b, &pem.Block{Type: kind, Bytes: der}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	pair := func(n int64, cn string) (cert, key string) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		return pemOf("CERTIFICATE", sign(template(n, cn), k)), pemOf("EC PRIVATE KEY", der)
	}
	p := pki{ca: pemOf("CERTIFICATE", sign(root, caKey)), pool: x509.NewCertPool()}
	p.pool.AppendCertsFromPEM([]byte(p.ca))
	cert, key := pair(2, "registry")
	if p.server, err = tls.X509KeyPair([]byte(cert), []byte(key)); err != nil {
		t.Fatal(err)
	}
	p.client, p.clientKey = pair(3, "node")
	return p
}

func TestTLS(t *testing.T) {
	p := newPKI(t)
	// The registry's name differs from its host, so that no exception for loopback applies.
	for name, c := range map[string]struct {
		clientCert bool
		files      func(t *testing.T, dir certs, host string) string // what hosts.toml holds
		fails      string
	}{
		"own CA": {files: func(t *testing.T, dir certs, host string) string {
			dir.add(t, "registry.test", "ca.pem", p.ca)
			return fmt.Sprintf("[host.%q]\nca = %q", host, "ca.pem")
		}},
		"unknown CA": {fails: "certificate", files: func(_ *testing.T, _ certs, host string) string {
			return fmt.Sprintf("[host.%q]", host)
		}},
		"not verified": {files: func(_ *testing.T, _ certs, host string) string {
			return fmt.Sprintf("[host.%q]\nskip_verify = true", host)
		}},
		"client's certificate": {clientCert: true, files: func(t *testing.T, dir certs, host string) string {
			dir.add(t, "registry.test", "client.cert", p.client)
			dir.add(t, "registry.test", "client.key", p.clientKey)
			return fmt.Sprintf("[host.%q]\nca = %q\nclient = [[%q, %q]]", host, dir.add(t, "registry.test", "ca.pem", p.ca), "client.cert", "client.key")
		}},
		"no client's certificate": {clientCert: true, fails: "certificate", files: func(_ *testing.T, _ certs, host string) string {
			return fmt.Sprintf("[host.%q]\nskip_verify = true", host)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := newServer(t, func(h *httptest.Server) {
				h.TLS = &tls.Config{Certificates: []tls.Certificate{p.server}, ClientCAs: p.pool}
				if c.clientCert {
					h.TLS.ClientAuth = tls.RequireAndVerifyClientCert
				}
				h.StartTLS()
			})
			srv.Push(t, "demo:1", twoLayers(t))
			dir := newCerts(t)
			host := "https://" + srv.Host
			dir.add(t, "registry.test", "hosts.toml", c.files(t, dir, host))
			_, err := dir.store(t).Pull(t.Context(), "registry.test/demo:1", image.PullOptions{})
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Docker's layout: certificates in a folder with the registry's name.
func TestFolderOfCertificates(t *testing.T) {
	p := newPKI(t)
	srv := newServer(t, func(h *httptest.Server) {
		h.TLS = &tls.Config{Certificates: []tls.Certificate{p.server}, ClientCAs: p.pool, ClientAuth: tls.RequireAndVerifyClientCert}
		h.StartTLS()
	})
	dir := newCerts(t)
	dir.add(t, underscored(srv.Host), "ca.crt", p.ca)
	dir.add(t, underscored(srv.Host), "node.cert", p.client)
	dir.add(t, underscored(srv.Host), "node.key", p.clientKey)
	pull(t, dir.store(t), srv.Push(t, "demo:1", twoLayers(t)))
}

func TestTLSOnLoopbackNeedsNoConfiguration(t *testing.T) {
	srv := newServer(t, (*httptest.Server).StartTLS)
	pull(t, open(t, t.TempDir()), srv.Push(t, "demo:1", twoLayers(t)))
}

// TestPipeInTheRegistrysFolder: a pull used to wait for it for ever.
func TestPipeInTheRegistrysFolder(t *testing.T) {
	for _, name := range []string{"hosts.toml", "ca.crt", "client.cert"} {
		root := t.TempDir()
		dir := filepath.Join(root, "127.0.0.1_1_")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := openWith(t, t.TempDir(), image.Config{CertsDirs: []string{root}}).Pull(t.Context(), "127.0.0.1:1/x:1", image.PullOptions{})
		if err == nil || !strings.Contains(err.Error(), name+": is not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
