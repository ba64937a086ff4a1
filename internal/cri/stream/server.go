// Package stream carries the streams of exec, attach and port-forward: the server that clients connect
// to, and pipes, terminals and sockets on the other side.
package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
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
		srv.ServeHTTP(proving{w, req.Context()}, req)
	}))
	return &Server{Server: srv, listener: in, http: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}}, nil
}

// proving tells the listener which connections become streams: only a client that was given a URL
// gets that far.
type proving struct {
	http.ResponseWriter
	ctx context.Context
}

// Hijack implements http.Hijacker.
func (p proving) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	inbound.Proven(p.ctx)
	return http.NewResponseController(p.ResponseWriter).Hijack()
}

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
