package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/util/connrotation"

	"wherry.dev/internal/pki"
)

// listed is a server of a list.
type listed struct {
	*httptest.Server
	asked  atomic.Int64
	status atomic.Int64
}

func (l *listed) host() string { return l.Listener.Addr().String() }

func startListed(t *testing.T, ca *pki.CA, leaf pki.Leaf) *listed {
	t.Helper()
	cert, key, err := ca.Issue(t.TempDir(), "server", leaf, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l := &listed{}
	l.status.Store(http.StatusOK)
	l.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		l.asked.Add(1)
		w.WriteHeader(int(l.status.Load()))
	}))
	l.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	l.StartTLS()
	t.Cleanup(l.Close)
	return l
}

// listClient returns an HTTP client of the list's servers.
func listClient(t *testing.T, l *serverList, ca *pki.CA) *http.Client {
	t.Helper()
	pem, err := ca.Cert()
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.RootCAs.AppendCertsFromPEM(pem)
	l.verify(cfg)
	dialer := connrotation.NewDialer(l.Dial)
	l.hangUp = dialer.CloseAll
	transport := &http.Transport{TLSClientConfig: cfg, DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: watched{transport, l}}
}

func TestANodeReachesOneOfTheServers(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.LoadOrCreateCA(dir, "ca", "kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*listed{}
	var hosts []string
	for range 3 {
		s := startListed(t, ca, pki.Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: []string{serverName}})
		all[s.host()], hosts = s, append(hosts, s.host())
	}
	slices.Sort(hosts)
	l, err := newServerList(dir, "n1", "https://"+hosts[0])
	if err != nil {
		t.Fatal(err)
	}
	client := listClient(t, l, ca)
	ask := func() (status int, err error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+hosts[0]+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if _, err := ask(); err != nil {
		t.Fatalf("the server that was given, although its certificate has another name: %v", err)
	}
	l.set(t.Context(), hosts)
	for range 2 { // one after another goes away
		gone := l.current
		all[gone].CloseClientConnections()
		all[gone].Close()
		began := time.Now()
		status, err := ask()
		if err != nil || status != http.StatusOK || l.current == gone {
			t.Fatalf("%s is gone, connected with %s: %v", gone, l.current, err)
		}
		t.Logf("connected with another one after %s", time.Since(began))
	}

	// The list is there after a restart, when the server that was given is not.
	again, err := newServerList(dir, "n1", "https://"+hosts[0])
	if err != nil {
		t.Fatal(err)
	}
	if got := again.candidates(); !slices.Equal(slices.Sorted(slices.Values(got)), hosts) {
		t.Errorf("after a restart: %v, want %v", got, hosts)
	}
}

func TestANodeLeavesAServerThatCannotServe(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.LoadOrCreateCA(dir, "ca", "kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a := startListed(t, ca, pki.Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: []string{serverName}})
	b := startListed(t, ca, pki.Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: []string{serverName}})
	l, err := newServerList(dir, "n1", "https://"+a.host())
	if err != nil {
		t.Fatal(err)
	}
	client := listClient(t, l, ca)
	get := func() int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+a.host()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	a.status.Store(http.StatusServiceUnavailable)
	if got := get(); got != http.StatusServiceUnavailable {
		t.Fatalf("the only server: %d", got)
	}
	l.set(t.Context(), []string{a.host(), b.host()})
	l.mu.Lock()
	l.current = a.host()
	l.mu.Unlock()
	get()
	for range 3 {
		if got := get(); got != http.StatusOK {
			t.Errorf("there is another one: %d", got)
		}
	}
	if b.asked.Load() != 3 {
		t.Errorf("the other one was asked %d times", b.asked.Load())
	}
}

// A server that is killed may accept a connection in its last moment, and then reset it. Another one answers, and the client does
// not learn of it; only what changes something is not repeated.
func TestARequestIsRepeatedAtAnotherServer(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.LoadOrCreateCA(dir, "ca", "kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	live := startListed(t, ca, pki.Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: []string{serverName}})
	dying, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dying.Close() }()
	go func() {
		for {
			c, err := dying.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	ask := func(method string, servers ...string) error {
		t.Helper()
		l, err := newServerList(dir, "n1", "https://"+dying.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		l.known, l.current = servers, dying.Addr().String()
		req, err := http.NewRequestWithContext(t.Context(), method, "https://"+l.given+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := listClient(t, l, ca).Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	if err := ask(http.MethodGet, dying.Addr().String(), live.host()); err != nil {
		t.Errorf("another server is there: %v", err)
	}
	asked := live.asked.Load()
	if err := ask(http.MethodPost, dying.Addr().String(), live.host()); err == nil || live.asked.Load() != asked {
		t.Errorf("a request that changes something was repeated: %v", err)
	}
	if err := ask(http.MethodGet, dying.Addr().String()); err == nil {
		t.Error("the only server answers")
	}
	live.Close()
	if err := ask(http.MethodGet, dying.Addr().String(), live.host()); err == nil {
		t.Error("somebody answers, and one server is dying and the other one gone")
	}
}

func TestStrangersAreNotOnTheList(t *testing.T) {
	dir := t.TempDir()
	ours, err := pki.LoadOrCreateCA(dir, "ca", "kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := pki.LoadOrCreateCA(dir, "theirs", "kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{serverName}
	for name, s := range map[string]*listed{
		"another authority":                    startListed(t, theirs, pki.Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: names, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}),
		"a node with a certificate of its own": startListed(t, ours, pki.Leaf{CommonName: "system:node:n2", Server: true, DNSNames: []string{"n2"}, IPs: []net.IP{net.IPv4(127, 0, 0, 2)}}),
		"a client's certificate":               startListed(t, ours, pki.Leaf{CommonName: "kube-apiserver", Client: true, DNSNames: names}),
	} {
		l, err := newServerList(dir, "n1", "https://"+s.host())
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := listClient(t, l, ours).Do(req)
		if err == nil {
			_ = resp.Body.Close()
			t.Errorf("%s is believed", name)
		} else if !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
		if s.asked.Load() > 0 {
			t.Errorf("%s was asked", name)
		}
	}
}

// A server whose machine is gone does not answer at all: the next one is tried soon.
func TestTheNextServerIsTriedSoon(t *testing.T) {
	l, err := newServerList(t.TempDir(), "n1", "https://192.0.2.1:6443")
	if err != nil {
		t.Fatal(err)
	}
	live, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = live.Close() }()
	l.known = []string{live.Addr().String()}
	direct := l.dial
	l.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "192.0.2.1:") {
			<-ctx.Done() // no packet comes back
			return nil, ctx.Err()
		}
		return direct(ctx, network, address)
	}
	for range 2 {
		conn, err := l.Dial(t.Context(), "tcp", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.RemoteAddr().String(); got != live.Addr().String() {
			t.Errorf("connected with %s", got)
		}
		_ = conn.Close()
	}
	if got := l.candidates()[0]; got != live.Addr().String() {
		t.Errorf("the next connection is tried with %s first", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	l.known, l.current = nil, ""
	if _, err := l.Dial(ctx, "tcp", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody answers: %v", err)
	}
}

func TestADamagedListOfServersIsTakenForNone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "servers.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := newServerList(dir, "n1", "https://192.0.2.1:6443")
	if err != nil {
		t.Fatal(err)
	}
	if got := l.candidates(); !slices.Equal(got, []string{"192.0.2.1:6443"}) {
		t.Error(got)
	}
	l.set(t.Context(), serversIn(&discoveryv1.EndpointSlice{})) // nobody could have said so
	if got := l.candidates(); !slices.Equal(got, []string{"192.0.2.1:6443"}) {
		t.Error(got)
	}
}
