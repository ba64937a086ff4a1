// Package stream carries the streams of exec, attach and port-forward: the server that clients connect
// to, and pipes, terminals and sockets on the other side.
package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/cri-streaming/pkg/streaming"

	"wherry.dev/internal/inbound"
)

// Server serves exec, attach and port-forward. Each of its URLs works once, for a minute,
// and cannot be guessed.
type Server struct {
	streaming.Server
	listener net.Listener
	http     *http.Server
}

// NewServer listens on addr. r is called once a client has come to the URL that it was given.
func NewServer(addr string, r streaming.Runtime) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for streams: %w", err)
	}
	cfg := streaming.DefaultConfig
	cfg.Addr = l.Addr().String()
	cfg.BaseURL = &url.URL{Scheme: "http", Host: l.Addr().String()}
	srv, err := streaming.NewServer(cfg, r)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	in := inbound.Bound(l)
	handler := in.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasPrefix(req.URL.Path, "/attach/") {
			// What exec runs outlives its client, and port-forward sees by itself that its client leaves.
			srv.ServeHTTP(proving{w, req.Context(), nil}, req)
			return
		}
		ctx, leave := context.WithCancel(req.Context())
		defer leave()
		srv.ServeHTTP(proving{w, ctx, leave}, req.WithContext(ctx))
	}))
	return &Server{Server: srv, listener: in, http: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}}, nil
}

// proving tells the listener which connections become streams: only a client that was given a URL
// gets that far.
type proving struct {
	http.ResponseWriter
	ctx context.Context
	// leave is called when the client leaves, which net/http does not see of a connection that has become a stream.
	// It may be nil.
	leave context.CancelFunc
}

// Hijack implements http.Hijacker.
func (p proving) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	inbound.Proven(p.ctx)
	conn, rw, err := http.NewResponseController(p.ResponseWriter).Hijack()
	if err != nil || p.leave == nil {
		return conn, rw, err
	}
	c := watch(conn, rw.Reader, p.leave)
	return c, bufio.NewReadWriter(bufio.NewReader(c), rw.Writer), nil
}

// watched is a connection from which is read whether or not somebody asks for more: SPDY's reader stops when its client
// says that it goes, and whoever is attached to a container that says nothing would not hear of it.
type watched struct {
	net.Conn
	in *io.PipeReader
}

// watch calls leave when nothing more can be read from the connection. in has what was read from it so far.
func watch(conn net.Conn, in io.Reader, leave func()) watched {
	r, w := io.Pipe()
	go func() { // ends when the connection is closed, by either side
		_, err := io.Copy(w, in)
		_ = w.CloseWithError(err) // returns nil always
		leave()
	}()
	return watched{conn, r}
}

func (w watched) Read(b []byte) (int, error) { return w.in.Read(b) }

// Close closes the connection, also while what was read from it waits for somebody to ask for it.
func (w watched) Close() error { return errors.Join(w.in.Close(), w.Conn.Close()) }

// Flush implements http.Flusher.
func (p proving) Flush() {
	_ = http.NewResponseController(p.ResponseWriter).Flush() // the interface has no error to return
}

// Run serves until ctx ends, and then cuts the streams that are still open.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

// Close stops listening. It is for a server on which Run was not called.
func (s *Server) Close() { _ = s.listener.Close() }
