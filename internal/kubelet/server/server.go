package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/klog/v2"

	"wherry.dev/internal/inbound"
	"wherry.dev/internal/kubelet/podworker"
)

// Pods are the node's pods.
type Pods interface {
	ByName(namespace, name string) (podworker.Snapshot, bool)
	Get(uid types.UID) (podworker.Snapshot, bool)
	List() []*podworker.Snapshot
}

// Config of a server.
type Config struct {
	Auth *Auth
	// Certificate for TLS connections.
	Certificate func() (*tls.Certificate, error)
	// MinVersion, CipherSuites and Curves of TLS; zero values are Go's defaults.
	MinVersion   uint16
	CipherSuites []uint16
	Curves       []tls.CurveID
	PodLogs      string
	// Checkpoints is the directory for container archives.
	Checkpoints string
	// SystemLogs is the directory served at /logs, normally /var/log; empty disables the path.
	SystemLogs string
	// LogQuery allows queries for the logs of services at /logs (KEP-2258).
	LogQuery bool
	// Configz is shown, as JSON, at /configz.
	Configz any
	// Debugging enables the debugging handlers (logs, exec, attach, run, port-forward). Profiling
	// and DebugFlags (the verbosity of the log) take effect only together with it.
	Debugging, Profiling, DebugFlags bool
	// Flags of the command line are served at /flagz; nil disables the path.
	Flags *pflag.FlagSet
	// Healthy returns an error if the kubelet is unhealthy.
	Healthy func() error
	Stats   *Stats
	// Trace, if not nil, returns the steps in the life of a pod, by its UID, as `wherry trace` reads them.
	Trace func(uid string) (trace any, ok bool)
	// Volumes, if not nil, serves the disk of local volumes (package localvolume).
	Volumes http.Handler
	// Refresh, if not nil, updates gauges before they are read.
	Refresh func()
}

// Server serves the kubelet's API.
type Server struct {
	cfg     Config
	pods    Pods
	runtime internalapi.RuntimeService
	mux     *http.ServeMux
}

// New returns a server.
func New(cfg Config, pods Pods, rt internalapi.RuntimeService) *Server {
	s := &Server{cfg: cfg, pods: pods, runtime: rt, mux: http.NewServeMux()}
	s.route(s.mux)
	return s
}

// Serve serves on a listener, with TLS, until the context ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: s.cfg.CipherSuites, CurvePreferences: s.cfg.Curves,
		// HTTP/1.1 only: streams use upgrades, which HTTP/2 does not have.
		NextProtos: []string{"http/1.1"},
		ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.cfg.Certificate()
		},
	}
	if s.cfg.MinVersion != 0 {
		cfg.MinVersion = s.cfg.MinVersion
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { s.cfg.Auth.Run(ctx) })
	in := inbound.Bound(l)
	return serve(ctx, tls.NewListener(in, cfg), in.Handler(measured("readwrite", s.cfg.Auth.guard(s.mux))))
}

// ServeReadOnly serves, without TLS and to everybody, what is only informative: pods, statistics,
// metrics and health.
func (s *Server) ServeReadOnly(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	s.routeOpen(mux)
	routeDisabled(mux)
	in := inbound.Bound(l)
	return serve(ctx, in, in.Handler(measured("readonly", mux)))
}

// ServeHealthz serves /healthz, and nothing else, without TLS.
func (s *Server) ServeHealthz(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	s.routeHealth(mux)
	in := inbound.Bound(l)
	return serve(ctx, in, in.Handler(mux))
}

// serve runs an HTTP server until the context ends; open requests end with it.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	logger := klog.FromContext(ctx)
	srv := &http.Server{
		Handler: tellsPanics(h), ReadHeaderTimeout: 32 * time.Second, IdleTimeout: 90 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    log.New(klogWriter{logger}, "", 0),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	err := srv.Close()
	if e := <-done; !errors.Is(e, http.ErrServerClosed) {
		return e
	}
	return err
}

// tellsPanics logs a handler's panic as the API server does. net/http, which then closes the
// connection, would log it through ErrorLog among the failed handshakes.
func tellsPanics(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer utilruntime.HandleCrashWithContext(req.Context())
		h.ServeHTTP(w, req)
	})
}

// klogWriter takes what net/http complains about: clients that break off handshakes.
type klogWriter struct{ logger klog.Logger }

func (k klogWriter) Write(p []byte) (int, error) {
	k.logger.V(4).Info(strings.TrimSpace(string(p)))
	return len(p), nil
}

func writeJSON(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}
