package inbound

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/test/leaks"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(panics.Watch(m)).Run()) }

// lowest is the descriptor that the next file will get.
func lowest(t *testing.T) int {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	return int(f.Fd())
}

// never is a patience that no test exhausts.
const never = time.Hour

// server is a server on loopback that knows clients who say "known", and that holds a request to
// /hold until the test releases it.
type server struct {
	t    *testing.T
	addr string
	pool *pool
	held chan struct{}
	free chan struct{}
}

// serve starts a server whose connections may use that many more descriptors than are open now,
// over TLS if it gets a certificate.
func serve(t *testing.T, descriptors int, patience time.Duration, certs ...tls.Certificate) *server {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	line := lowest(t) + descriptors
	s := &server{t: t, addr: tcp.Addr().String(), pool: newPool(func() int { return line }, patience), held: make(chan struct{}, 100), free: make(chan struct{})}
	l := &Listener{tcp, s.pool}
	mux := http.NewServeMux()
	mux.HandleFunc("/hold", func(http.ResponseWriter, *http.Request) {
		s.held <- struct{}{}
		<-s.free
	})
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: l.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") == "known" {
			Proven(req.Context())
		}
		mux.ServeHTTP(w, req)
	}))}
	var served net.Listener = l
	if len(certs) > 0 {
		served = tls.NewListener(l, &tls.Config{Certificates: certs, MinVersion: tls.VersionTLS12})
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(served) }()
	t.Cleanup(func() {
		close(s.free)
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the server ended: %v", err)
		}
	})
	return s
}

// dial opens a connection that is closed at the end of the test.
func (s *server) dial() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// dialHigh is dial with a descriptor far from those that the server gets: only the server is
// meant to be short of them.
func (s *server) dialHigh() {
	s.t.Helper()
	tcp, err := net.ResolveTCPAddr("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	low, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, 500)
	if err := errors.Join(err, unix.Close(low)); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: tcp.Port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		s.t.Fatal(err)
	}
}

func ask(c net.Conn, path, who string) error {
	_, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\n\r\n", path, who)
	return err
}

// answered sends a request on a connection and reads the answer.
func answered(c net.Conn, who string) error {
	if err := ask(c, "/", who); err != nil {
		return err
	}
	return answer(c)
}

func answer(c net.Conn) error {
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err == nil && !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 200 OK") {
		return fmt.Errorf("answer %q", buf[:n])
	}
	return err
}

func (s *server) open() int {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return len(s.pool.conns)
}

func TestAFloodOfStrangersLeavesRoom(t *testing.T) {
	s := serve(t, 60, never)
	watching, resting := s.dial(), s.dial()
	if err := ask(watching, "/hold", "known"); err != nil {
		t.Fatal(err)
	}
	<-s.held
	if err := answered(resting, "known"); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		s.dialHigh()
	}
	// the next client is served; its connection is the last that the listener accepted
	if err := answered(s.dial(), ""); err != nil {
		t.Errorf("a new client: %v", err)
	}
	if n := s.open(); n > 60 {
		t.Errorf("%d connections are open, of 300 and 60 descriptors", n)
	}
	if err := answered(resting, "known"); err != nil {
		t.Errorf("a known client between requests: %v", err)
	}
	s.free <- struct{}{}
	if err := answer(watching); err != nil {
		t.Errorf("a known client that is being served: %v", err)
	}
}

// TestAFloodOfSilentStrangersCutsOffNoHandshake: a TLS client is in the middle of its handshake
// when many connections arrive that say nothing.
func TestAFloodOfSilentStrangersCutsOffNoHandshake(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	s := serve(t, 60, never, cert.TLS.Certificates...)
	flood := func(tls.ConnectionState) error { // the server's part of the handshake has arrived
		for range 300 {
			s.dialHigh()
		}
		return answered(s.over(s.dial(), nil), "") // the last that the listener accepted
	}
	if err := answered(s.over(s.dial(), flood), "known"); err != nil {
		t.Errorf("a client in the middle of its handshake: %v", err)
	}
}

// over returns a TLS connection whose client side calls a function during the handshake.
func (s *server) over(c net.Conn, between func(tls.ConnectionState) error) net.Conn {
	return tls.Client(c, &tls.Config{InsecureSkipVerify: true, VerifyConnection: between}) //nolint:gosec // on loopback
}

// TestWhoMakesRoom: first strangers that say nothing, then those that wait, then known clients
// that rest, then strangers that are being served; never known clients that are being served.
func TestWhoMakesRoom(t *testing.T) {
	s := serve(t, 1<<20, never)
	conns := map[string]net.Conn{}
	for _, c := range []struct{ name, path, who string }{
		{"served known", "/hold", "known"}, {"served stranger", "/hold", ""}, {"resting known", "/", "known"}, {"resting stranger", "/", ""},
	} {
		conns[c.name] = s.dial()
		if err := ask(conns[c.name], c.path, c.who); err != nil {
			t.Fatal(err)
		}
		if c.path == "/hold" {
			<-s.held
		} else if err := answer(conns[c.name]); err != nil {
			t.Fatal(err)
		}
	}
	conns["silent stranger"] = s.dial()
	for s.restingLen() != 3 {
		time.Sleep(time.Millisecond) // the answer arrives before the handler returns
	}
	for _, name := range []string{"silent stranger", "resting stranger", "resting known", "served stranger"} {
		if !s.pool.makeRoom() {
			t.Fatalf("%s does not make room", name)
		}
		if err := answer(conns[name]); err == nil {
			t.Errorf("%s was not closed", name)
		}
	}
	if s.pool.makeRoom() {
		t.Error("a known client that is being served had to go")
	}
	for range 2 {
		s.free <- struct{}{}
	}
	if err := answer(conns["served known"]); err != nil {
		t.Error(err)
	}
}

func (s *server) wait(patience time.Duration) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.pool.patience = patience
}

func (s *server) restingLen() int {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.pool.lists[silent].Len() + s.pool.lists[strangers].Len() + s.pool.lists[resting].Len()
}

func TestStrangersHaveLittleTime(t *testing.T) {
	s := serve(t, 1<<20, never)
	known, served := s.dial(), s.dial()
	if err := answered(known, "known"); err != nil {
		t.Fatal(err)
	}
	if err := ask(served, "/hold", ""); err != nil {
		t.Fatal(err)
	}
	<-s.held
	silent, half, again := s.dial(), s.dial(), s.dial()
	if _, err := io.WriteString(half, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := answered(again, ""); err != nil {
		t.Fatal(err)
	}
	for s.restingLen() != 4 {
		time.Sleep(time.Millisecond) // until all are accepted, and both handlers have returned
	}
	s.wait(0)
	s.pool.sweep() // as when the time is up
	s.wait(never)
	for name, c := range map[string]net.Conn{"that says nothing": silent, "that asks half": half, "that asked once": again} {
		if err := answer(c); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a stranger %s is not closed: %v", name, err)
		}
	}
	if err := answered(known, "known"); err != nil {
		t.Errorf("a known client: %v", err)
	}
	s.free <- struct{}{}
	if err := answer(served); err != nil {
		t.Errorf("a stranger that was being served: %v", err)
	}
}

func TestTheTimeOfStrangersEndsByItself(t *testing.T) {
	s := serve(t, 1<<20, 10*time.Millisecond)
	for range 3 {
		if err := answer(s.dial()); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a stranger is not closed: %v", err)
		}
	}
}

// failing is a listener whose first accepts fail.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	return f.Listener.Accept()
}

// TestWhoSaysNothingTakesNoFile: of two connections, the one that speaks is accepted first.
func TestWhoSaysNothingTakesNoFile(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Bound(tcp)
	var speaks net.Conn
	for _, text := range []string{"", "hello"} {
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		speaks = c
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.RemoteAddr().String(), speaks.LocalAddr().String(); got != want {
		t.Errorf("%s was accepted before %s, which speaks", got, want)
	}
	if err := errors.Join(c.Close(), l.Close()); err != nil {
		t.Error(err)
	}
}

func TestAcceptsErrorsEndNoServer(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Listener{&failing{tcp, []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EPROTO}}, newPool(func() int { return 1 << 20 }, never)}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: l.Handler(http.NotFoundHandler())}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	resp, err := http.Get("http://" + tcp.Addr().String()) //nolint:noctx // the server is closed
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("the server ended: %v", err)
	}
}
