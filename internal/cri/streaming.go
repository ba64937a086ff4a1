package cri

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"wherry.dev/internal/inbound"
)

// streamServer serves exec, attach and port-forward. Each of its URLs works once, for a minute,
// and cannot be guessed.
type streamServer struct {
	streaming.Server
	listener net.Listener
	http     *http.Server
}

func newStreamServer(addr string, r streaming.Runtime) (*streamServer, error) {
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
	return &streamServer{Server: srv, listener: in, http: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}}, nil
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

// run serves until ctx ends, and then cuts the streams that are still open.
func (s *streamServer) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

func (s *streamServer) close() { _ = s.listener.Close() }

// execURL returns the URL at which a client runs a command.
func (s *Server) execURL(req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if !c.running() {
		return nil, precondition("container %s is not running", c.id)
	}
	req.ContainerId = c.id
	return s.stream.GetExec(req)
}

func (s *Server) attachURL(req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if !c.running() {
		return nil, precondition("container %s is not running", c.id)
	}
	req.ContainerId = c.id
	return s.stream.GetAttach(req)
}

func (s *Server) portForwardURL(req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	b, err := s.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if !b.ready() {
		return nil, precondition("sandbox %s is not ready", b.id)
	}
	req.PodSandboxId = b.id
	return s.stream.GetPortForward(req)
}
