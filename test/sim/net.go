package sim

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/pods"
)

// What is asked of a container over the network, and how.
var (
	asked     = []string{"startup", "liveness", "readiness", "postStart", "preStop"}
	protocols = []string{"http", "tcp", "grpc", "https"}
)

// door is what a container's port is for. The port number encodes all of it, so that the network
// needs to know nothing about the pod.
type door struct {
	container string // a letter and a digit
	ask       string
	protocol  string
	sick      bool
}

const doors = 10000

// Header values that HTTP requests carry.
const (
	virtualHost = "virtual.example"
	askHeader   = "X-Ask"
)

// zone ends the names that probes may have for their pod's address.
const zone = ".test"

// giveHosts lets some probes name a host, instead of going to the pod's address.
func giveHosts(pod *v1.Pod) {
	host := string(pod.UID) + zone
	for c := range pods.Containers(&pod.Spec) {
		for _, p := range []*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			switch {
			case p == nil || p.PeriodSeconds%3 != 0:
			case p.HTTPGet != nil:
				p.HTTPGet.Host = host
			case p.TCPSocket != nil:
				p.TCPSocket.Host = host
			}
		}
	}
}

// port returns the door's number.
func (d door) port() int {
	n := doors + strings.IndexByte("cis", d.container[0])*10000 + int(d.container[1]-'0')*1000 +
		slices.Index(asked, d.ask)*100 + slices.Index(protocols, d.protocol)*10
	if d.sick {
		n++
	}
	return n
}

// doorOf returns the door at an address.
func doorOf(addr string) (ip string, d door, err error) {
	ip, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", d, err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < doors {
		return "", d, fmt.Errorf("no container listens on port %q", text)
	}
	n -= doors
	return ip, door{
		container: string("cis"[n/10000]) + strconv.Itoa(n/1000%10), ask: asked[n/100%10], protocol: protocols[n/10%10], sick: n%10 == 1,
	}, nil
}

// probe returns the handler of a probe on the door.
func (d door) probe() v1.ProbeHandler {
	switch d.protocol {
	case "http", "https":
		return v1.ProbeHandler{HTTPGet: d.get()}
	case "tcp":
		return v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt(d.port())}}
	default:
		return v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(d.port()), Service: new(d.ask)}}
	}
}

func (d door) get() *v1.HTTPGetAction {
	scheme := v1.URISchemeHTTP
	if d.protocol == "https" {
		scheme = v1.URISchemeHTTPS
	}
	return &v1.HTTPGetAction{Path: "/" + d.ask, Port: intstr.FromInt(d.port()), Scheme: scheme, HTTPHeaders: []v1.HTTPHeader{
		{Name: "Host", Value: virtualHost}, {Name: askHeader, Value: d.ask},
	}}
}

// internet is what serves at the addresses of pods, without a socket.
type internet struct {
	l    *life
	grpc *grpc.Server // made for the first call
	once sync.Once
	in   chan net.Conn
	done sync.WaitGroup
}

func newInternet(l *life) *internet { return &internet{l: l, in: make(chan net.Conn)} }

// dial connects one life of the kubelet to a container.
func (n *node) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	l := n.life
	ip, d, err := doorOf(addr)
	if err != nil {
		return nil, err
	}
	// A transport keeps connecting after its request has been given up.
	l.net.done.Add(1)
	defer l.net.done.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)() //nolint:contextcheck // it ends with the process, too
	var here net.Conn
	conn, err := call(ctx, n, "Dial", addr, func(context.Context) (net.Conn, error) {
		key := fmt.Sprintf("%d dial %s", n.number, addr)
		id := l.rt.At(strings.TrimSuffix(strings.TrimPrefix(ip, hostIP), zone), d.container)
		if id == "" || d.sick && d.protocol == "tcp" || l.faulty() && l.dice.chance(0.07, key+" refused") {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connect: connection refused")}
		}
		if d.protocol == "tcp" {
			l.answered(d, id)
		}
		if d.protocol == "https" {
			var there net.Conn
			if here, there, err = l.net.secure(ctx, key); err == nil {
				l.net.done.Go(func() { l.net.serve(there, d, id, key) })
			}
			return here, err
		}
		var there net.Conn
		here, there = net.Pipe()
		if d.protocol == "grpc" {
			l.net.call(visit{there, d, id, key})
			return here, nil
		}
		l.net.done.Go(func() { l.net.serve(there, d, id, key) })
		return here, nil
	})
	if err != nil && here != nil {
		_ = here.Close()
	}
	return conn, err
}

// certificate is the one certificate of all containers of all lives.
var certificate = sync.OnceValue(func() *tls.Config {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err) // there is no randomness
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(nil, cert, cert, public, private)
	if err != nil {
		panic(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}, MinVersion: tls.VersionTLS13,
		CurvePreferences: []tls.CurveID{tls.X25519}, SessionTicketsDisabled: true,
	}
})

// secure returns a connection with TLS at its far end; now and then the far end speaks plain HTTP.
// It is buffered: a transport says goodbye while it holds a lock, and must not wait.
func (i *internet) secure(ctx context.Context, key string) (here, there net.Conn, err error) {
	const size = 64 << 10
	between := bufconn.Listen(size)
	accepted := make(chan net.Conn, 1)
	i.done.Go(func() {
		if c, err := between.Accept(); err == nil {
			accepted <- c
		}
		close(accepted)
	})
	if here, err = between.DialContext(ctx); err != nil {
		return nil, nil, errors.Join(err, between.Close())
	}
	there = <-accepted
	if i.l.faulty() && i.l.dice.chance(0.1, key+" speaks HTTP") {
		return here, there, nil
	}
	return here, tls.Server(there, certificate()), nil
}

// answered records in the history what a container said about itself.
func (l *life) answered(d door, id string) {
	if d.ask == "startup" {
		l.hist.add(Event{What: StartupPassed, ID: id})
	}
}

// serve answers one HTTP request: late, badly, or not at all.
func (i *internet) serve(c net.Conn, d door, id, key string) {
	defer func() { _ = c.Close() }()
	l := i.l
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	if req.Header.Get(askHeader) != d.ask || req.URL.Path == "/"+d.ask && req.Host != virtualHost {
		l.hist.fail(fmt.Errorf("a request for %s of %s came to %q with headers %v", d.ask, id, req.Host, req.Header))
	}
	late := l.dice.upTo(300*time.Millisecond, key+" takes")
	if l.faulty() && l.dice.chance(0.02, key+" hangs") {
		late = l.dice.upTo(2*time.Minute, key+" takes")
	}
	time.Sleep(late)
	answer := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	switch {
	case d.sick, l.faulty() && l.dice.chance(0.1, key+" fails"):
		answer = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
	case l.faulty() && l.dice.chance(0.03, key+" is garbage"):
		answer = "?\r\n"
	case req.URL.Path == "/"+d.ask && l.dice.chance(0.05, key+" redirects"):
		// The answer to the second request, on another connection, counts.
		answer = "HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
	default:
		l.answered(d, id)
	}
	_, _ = io.WriteString(c, answer)
}

// visit is a connection that knows where it leads; it serves as its own remote address.
type visit struct {
	net.Conn
	d       door
	id, key string
}

func (v visit) RemoteAddr() net.Addr { return v }
func (v visit) Network() string      { return "pipe" }
func (v visit) String() string       { return v.key }

// call hands a connection to the gRPC server.
func (i *internet) call(v visit) {
	i.once.Do(func() {
		i.grpc = grpc.NewServer(grpc.WaitForHandlers(true))
		grpc_health_v1.RegisterHealthServer(i.grpc, health{l: i.l})
		i.done.Go(func() { _ = i.grpc.Serve(i) })
	})
	i.in <- v
}

// health answers gRPC probes.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	l *life
}

// Check reports the health of a container.
func (h health) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	p, _ := peer.FromContext(ctx)
	v, ok := p.Addr.(visit)
	if !ok {
		return nil, status.Errorf(codes.Internal, "%T leads nowhere", p.Addr)
	}
	time.Sleep(h.l.dice.upTo(300*time.Millisecond, v.key+" takes"))
	st := grpc_health_v1.HealthCheckResponse_SERVING
	switch {
	case v.d.sick, h.l.faulty() && h.l.dice.chance(0.1, v.key+" fails"):
		st = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	case h.l.faulty() && h.l.dice.chance(0.03, v.key+" refuses"):
		return nil, status.Error(codes.Unimplemented, "no health here")
	default:
		h.l.answered(v.d, v.id)
	}
	return &grpc_health_v1.HealthCheckResponse{Status: st}, nil
}

// close waits until nothing serves any more.
func (i *internet) close() {
	if i.grpc != nil {
		i.grpc.Stop()
	}
	i.done.Wait()
}

// Accept implements net.Listener.
func (i *internet) Accept() (net.Conn, error) {
	if c, ok := <-i.in; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

// Close ends Accept.
func (i *internet) Close() error { close(i.in); return nil }

// Addr returns an empty address.
func (i *internet) Addr() net.Addr { return &net.TCPAddr{} }
