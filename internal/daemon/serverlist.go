package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"wherry.dev/internal/config"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/kubelet/certificates"
	"wherry.dev/internal/record"
)

const (
	// nextServer is how long a connection to one server is waited for before another is tried beside it.
	nextServer = 250 * time.Millisecond
	// dialPatienceAll is how long a connection may take.
	dialPatienceAll = 30 * time.Second
	// shunned is how long a server that could not serve is tried last.
	shunned = 10 * time.Second
	// serverName is in the serving certificates of all API servers.
	serverName = "kubernetes.default.svc"
)

// serverList has the API servers that a node can reach, and connects it with one of them: the one it was connected with, or
// else whichever answers first. It follows the endpoints of default/kubernetes, and is kept on the disk.
type serverList struct {
	file string // where it is kept
	node string // by whose name nodes are spread over the servers
	// given is the server that the node was told of: perhaps a load balancer, which is no endpoint.
	given string

	mu      sync.Mutex
	known   []string // the endpoints
	current string   // the server of the last connection
	bad     map[string]time.Time
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	hangUp  func()
}

func serversFile(dataDir string) string { return filepath.Join(dataDir, "servers.json") }

// newServerList returns the list of a node that has joined the server at a URL.
func newServerList(dataDir, node, server string) (*serverList, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	l := &serverList{
		file: serversFile(dataDir), node: node, given: u.Host, bad: map[string]time.Time{},
		dial: (&net.Dialer{Timeout: dialPatienceAll, KeepAlive: 30 * time.Second}).DialContext,
	}
	if _, err := record.Read(l.file, &l.known); err != nil {
		l.known = nil // it will be told again
	}
	return l, nil
}

// candidates returns all servers, those first that are to be tried first.
func (l *serverList) candidates() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Clone(l.known)
	slices.SortFunc(out, func(a, b string) int { return int(int64(l.rank(a)) - int64(l.rank(b))) })
	if !slices.Contains(out, l.given) {
		out = slices.Insert(out, 0, l.given)
	}
	if i := slices.Index(out, l.current); i > 0 {
		out = slices.Insert(slices.Delete(out, i, i+1), 0, l.current)
	}
	isBad := func(s string) bool { return time.Since(l.bad[s]) < shunned }
	slices.SortStableFunc(out, func(a, b string) int {
		switch {
		case isBad(a) == isBad(b):
			return 0
		case isBad(a):
			return 1
		}
		return -1
	})
	return out
}

// rank spreads the nodes over the servers.
func (l *serverList) rank(server string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(l.node + " " + server)) // never fails
	return h.Sum32()
}

// Dial connects with one of the servers, whatever the address.
func (l *serverList) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	type result struct {
		server string
		conn   net.Conn
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := l.candidates()
	results := make(chan result, len(left))
	var errs []error
	for pending := 0; ; {
		var next <-chan time.Time
		if len(left) > 0 {
			server := left[0]
			left = left[1:]
			pending++
			go func() {
				conn, err := l.dial(ctx, network, server)
				results <- result{server, conn, err}
			}()
			next = time.After(nextServer)
		}
		select {
		case r := <-results:
			pending--
			if r.err == nil {
				go func() { // what else comes up is not needed
					for range pending {
						if other := <-results; other.err == nil {
							_ = other.conn.Close()
						}
					}
				}()
				l.connected(ctx, r.server)
				return r.conn, nil
			}
			errs = append(errs, r.err)
			if pending == 0 && len(left) == 0 {
				return nil, errors.Join(errs...)
			}
		case <-next:
		}
	}
}

func (l *serverList) connected(ctx context.Context, server string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != "" && l.current != server {
		klog.FromContext(ctx).Info("Connected with another API server", "server", server, "before", l.current)
	}
	l.current = server
}

// set takes over what the cluster's endpoints are.
func (l *serverList) set(ctx context.Context, servers []string) {
	if len(servers) == 0 {
		return // there is none that could have said so
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Equal(servers, l.known) {
		return
	}
	l.known = servers
	if err := record.Write(l.file, 1, servers); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot keep the list of servers")
	}
}

// shun leaves a server that cannot serve, if there are others.
func (l *serverList) shun(ctx context.Context) {
	l.mu.Lock()
	server, leave := l.current, len(l.known) > 1 && time.Since(l.bad[l.current]) > shunned
	if leave {
		l.bad[server] = time.Now()
	}
	hangUp := l.hangUp
	l.mu.Unlock()
	if leave && hangUp != nil {
		klog.FromContext(ctx).Info("The API server cannot serve; trying the others", "server", server)
		hangUp()
	}
}

// server returns the one of the last connection.
func (l *serverList) server() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// lost notes that the connection with a server was lost, and returns how many others there are to try: a server that is killed
// may take a connection in its last moment, too.
func (l *serverList) lost(server string) (others int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad[server] = time.Now()
	for _, s := range l.known {
		if time.Since(l.bad[s]) > shunned {
			others++
		}
	}
	return others
}

// verify replaces the check of the server's name: a server of the list has its own address in its certificate, or the name
// that all servers have. Nobody else gets a certificate for that.
func (l *serverList) verify(cfg *tls.Config) {
	host, _, err := net.SplitHostPort(l.given)
	if err != nil {
		host = l.given
	}
	names := []string{serverName, host}
	if cfg.ServerName != "" {
		names = append(names, cfg.ServerName)
	}
	roots := cfg.RootCAs
	cfg.InsecureSkipVerify = true // VerifyConnection does the same, for several names
	cfg.VerifyConnection = func(s tls.ConnectionState) error {
		opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, c := range s.PeerCertificates[1:] {
			opts.Intermediates.AddCert(c)
		}
		var errs []error
		for _, name := range names {
			opts.DNSName = name
			_, err := s.PeerCertificates[0].Verify(opts)
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
		return fmt.Errorf("the server's certificate: %w", errs[len(errs)-1])
	}
}

// client returns the configuration of a node's client of the servers, and what closes its connections.
func (l *serverList) client(ctx context.Context, paths certificates.Paths, node string) (*rest.Config, func(), error) {
	paths.Dial, paths.Verify = l.Dial, l.verify
	cfg, hangUp, err := certificates.ClientConfig(ctx, paths, node, true)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	l.hangUp = hangUp
	l.mu.Unlock()
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return watched{rt, l} })
	return cfg, hangUp, nil
}

// watched is a transport that leaves a server that cannot serve, and repeats what another one can answer.
type watched struct {
	http.RoundTripper
	list *serverList
}

// RoundTrip implements http.RoundTripper. client-go would repeat a request whose connection was lost after a second.
func (w watched) RoundTrip(r *http.Request) (*http.Response, error) {
	for tries := 1; ; tries++ {
		server := w.list.server()
		resp, err := w.RoundTripper.RoundTrip(r)
		if err == nil && resp.StatusCode == http.StatusServiceUnavailable {
			w.list.shun(r.Context())
		}
		if err == nil || !connectionLost(err) {
			return resp, err
		}
		if others := w.list.lost(server); tries > others || !onlyReads(r) {
			return resp, err
		}
	}
}

func onlyReads(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.Body == nil || r.Body == http.NoBody)
}

func connectionLost(err error) bool {
	return utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}

// newServers follows the endpoints of the API servers.
func (d *Daemon) newServers(ctx context.Context, f informers.SharedInformerFactory) ([]service, error) {
	if d.joined.foreign && d.cfg.Proxy == config.NoProxy {
		return nil, nil // it may not read them
	}
	_, err := f.Discovery().V1().EndpointSlices().Informer().AddEventHandler(controller.Handler(func(_, obj any) {
		s, ok := obj.(*discoveryv1.EndpointSlice)
		if ok && s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes" {
			d.joined.servers.set(ctx, serversIn(s))
		}
	}))
	return nil, err
}

// serversIn returns the addresses (host:port) of the API servers that the slice of default/kubernetes names, sorted.
func serversIn(s *discoveryv1.EndpointSlice) (out []string) {
	for _, e := range s.Endpoints {
		for _, a := range e.Addresses {
			for _, p := range s.Ports {
				if p.Port != nil && net.ParseIP(a) != nil {
					out = append(out, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// othersIn returns those but the server of a configuration.
func othersIn(s *discoveryv1.EndpointSlice, cfg *config.Config) []string {
	own := hostPort(cfg.NodeIPs()[0].String(), cfg.SecurePort)
	return slices.DeleteFunc(serversIn(s), func(server string) bool { return server == own })
}
