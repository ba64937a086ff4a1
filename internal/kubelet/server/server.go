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
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/legacyregistry"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/podconfig"
	"wherry.dev/internal/kubelet/podworker"
)

// Pods are the pods of the node.
type Pods interface {
	ByName(namespace, name string) (podworker.Snapshot, bool)
	Get(uid types.UID) (podworker.Snapshot, bool)
	List() []podworker.Snapshot
}

// Config of a server.
type Config struct {
	Auth *Auth
	// Certificate for a TLS connection.
	Certificate func() (*tls.Certificate, error)
	PodLogs     string
	// Configz is shown, as JSON, at /configz.
	Configz any
	// Debugging handlers (logs, exec, attach, run, port-forward) and profiling.
	Debugging, Profiling bool
	// Healthy says why the kubelet is not well.
	Healthy func() error
	Stats   *Stats
	// Refresh, if not nil, brings gauges up to date before they are read.
	Refresh func()
}

// Server answers requests to the kubelet.
type Server struct {
	cfg     Config
	pods    Pods
	runtime internalapi.RuntimeService
	mux     *http.ServeMux
}

// New returns a server.
func New(cfg Config, pods Pods, rt internalapi.RuntimeService) *Server {
	s := &Server{cfg: cfg, pods: pods, runtime: rt, mux: http.NewServeMux()}
	s.route()
	return s
}

func (s *Server) route() {
	s.mux.HandleFunc("/healthz", s.healthz)
	s.mux.HandleFunc("/healthz/{check}", s.healthz)
	s.mux.HandleFunc("GET /pods", s.listPods)
	s.mux.HandleFunc("GET /pods/{$}", s.listPods)
	registry := legacyregistry.Handler()
	s.mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.Refresh != nil {
			s.cfg.Refresh()
		}
		registry.ServeHTTP(w, r)
	})
	s.mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{"kubeletconfig": s.cfg.Configz})
	})
	if s.cfg.Stats != nil {
		s.mux.HandleFunc("GET /stats/summary", s.cfg.Stats.summary)
		s.mux.HandleFunc("GET /stats/{$}", s.cfg.Stats.summary)
		s.mux.HandleFunc("GET /metrics/resource", s.cfg.Stats.resource)
		s.mux.HandleFunc("GET /metrics/cadvisor", s.cfg.Stats.cadvisor)
	}
	s.mux.HandleFunc("GET /metrics/probes", s.probes)
	if !s.cfg.Debugging {
		return
	}
	s.mux.HandleFunc("GET /runningpods/{$}", s.runningPods)
	s.mux.HandleFunc("GET /runningpods", s.runningPods)
	s.mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, p := range []string{"/{container}", "/{uid}/{container}"} {
		s.mux.HandleFunc("/exec/{namespace}/{pod}"+p, s.exec)
		s.mux.HandleFunc("/attach/{namespace}/{pod}"+p, s.attach)
		s.mux.HandleFunc("POST /run/{namespace}/{pod}"+p, s.run)
	}
	for _, p := range []string{"", "/{uid}"} {
		s.mux.HandleFunc("/portForward/{namespace}/{pod}"+p, s.portForward)
	}
	s.mux.HandleFunc("GET /debug/pods/{uid}", s.debugPod)
	if s.cfg.Profiling {
		s.mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		s.mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		s.mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		s.mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		s.mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
}

// Serve answers on a listener, by TLS, until the context ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return serve(ctx, tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS12,
		// HTTP/1.1 only: streams are upgraded, which HTTP/2 does not know.
		NextProtos: []string{"http/1.1"},
		ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.cfg.Certificate()
		},
	}), s.cfg.Auth.guard(s.mux))
}

// ServeHealthz answers /healthz, and nothing else, without TLS.
func (s *Server) ServeHealthz(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	return serve(ctx, l, mux)
}

// serve runs an HTTP server until the context ends; requests end with it.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	logger := klog.FromContext(ctx)
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 32 * time.Second, IdleTimeout: 90 * time.Second,
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

// klogWriter takes what net/http complains about: clients that break handshakes off.
type klogWriter struct{ logger klog.Logger }

func (k klogWriter) Write(p []byte) (int, error) {
	k.logger.V(4).Info(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	if s.cfg.Healthy != nil {
		if err := s.cfg.Healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	_, _ = w.Write([]byte("ok"))
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

// listPods shows the pods that the node should run, with their newest status.
func (s *Server) listPods(w http.ResponseWriter, _ *http.Request) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for _, p := range s.pods.List() {
		if p.Absent {
			continue
		}
		pod := *p.Pod
		pod.Status = p.Status
		list.Items = append(list.Items, pod)
	}
	slices.SortFunc(list.Items, byName)
	writeJSON(w, list)
}

func byName(a, b v1.Pod) int {
	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
}

// runningPods shows what the runtime runs.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	containers, err := s.runtime.ListContainers(r.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	pods := map[string]*v1.Pod{}
	for _, c := range containers {
		uid := c.Labels[podconfig.LabelPodUID]
		if uid == "" {
			continue
		}
		if pods[uid] == nil {
			pods[uid] = &v1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: c.Labels[podconfig.LabelPodName], Namespace: c.Labels[podconfig.LabelPodNamespace], UID: types.UID(uid),
			}}
		}
		pods[uid].Spec.Containers = append(pods[uid].Spec.Containers, v1.Container{
			Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage(),
		})
	}
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	slices.SortFunc(list.Items, byName)
	writeJSON(w, list)
}

// debugPod shows what the worker of a pod last saw, decided and did. The input can
// be fed to a test of podplan as it is.
func (s *Server) debugPod(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pods.Get(types.UID(r.PathValue("uid")))
	if !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	writeJSON(w, struct {
		At          time.Time
		Input       any
		Plan        any
		Status      v1.PodStatus
		Transitions []podworker.Transition
	}{p.At, p.Input, p.Plan, p.Status, p.Transitions})
}
