package server

import (
	"net/http"
	"net/http/pprof"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/apiserver/pkg/util/compatibility"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"

	"wherry.dev/internal/api/cluster"
)

// route registers all paths of the server.
func (s *Server) route(mux *http.ServeMux) {
	s.routeOpen(mux)
	if s.cfg.Volumes != nil {
		mux.Handle(cluster.VolumesPath, s.cfg.Volumes)
		mux.Handle(cluster.VolumesPath+"/", s.cfg.Volumes)
	}
	if !s.cfg.Debugging {
		routeDisabled(mux)
		return
	}
	s.routeStreams(mux)
	s.routeLogs(mux)
	s.routeProfiling(mux)
	for _, p := range []string{"/runningpods", "/runningpods/{$}"} {
		mux.HandleFunc("GET "+p, s.runningPods)
	}
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{"kubeletconfig": s.cfg.Configz})
	})
	mux.HandleFunc("POST /checkpoint/{namespace}/{pod}/{container}", s.checkpoint)
	for _, p := range []string{"/debug/pods", "/debug/pods/{$}"} {
		mux.HandleFunc("GET "+p, s.debugPods)
	}
	mux.HandleFunc("GET /debug/pods/{uid}", s.debugPod)
	mux.HandleFunc("GET /debug/reports/{namespace}/{name}/{uid}", s.reportPod)
	mux.HandleFunc("GET /debug/traces/{uid}", s.tracePod)
	s.routeZPages(mux)
}

// component is our name on the pages that all components of Kubernetes have.
const component = "kubelet"

// routeZPages adds the pages that say what the process is and how it was started (KEP-4827,
// KEP-4828).
func (s *Server) routeZPages(mux *http.ServeMux) {
	paths := []string{"/configz", "/healthz", "/metrics"}
	if s.cfg.Flags != nil {
		paths = append(paths, flagz.DefaultFlagzPath)
		named := cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{component: s.cfg.Flags}}
		flagz.Install(mux, component, flagz.NamedFlagSetsReader{FlagSets: named})
	}
	statusz.Install(mux, component, statusz.NewRegistry(compatibility.DefaultBuildEffectiveVersion(), statusz.WithListedPaths(paths)))
}

// routeOpen registers the paths that the read-only port has, too.
func (s *Server) routeOpen(mux *http.ServeMux) {
	s.routeHealth(mux)
	for _, p := range []string{"/pods", "/pods/{$}"} {
		mux.HandleFunc("GET "+p, s.listPods)
	}
	registry := legacyregistry.Handler()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.Refresh != nil {
			s.cfg.Refresh()
		}
		registry.ServeHTTP(w, r)
	})
	slis.SLIMetricsWithReset{}.Install(mux)
	if s.cfg.Stats != nil {
		mux.HandleFunc("GET /stats/summary", s.cfg.Stats.summary)
		mux.HandleFunc("POST /stats/summary", s.cfg.Stats.summary)
		mux.HandleFunc("GET /metrics/resource", s.cfg.Stats.resource)
		mux.HandleFunc("GET /metrics/cadvisor", s.cfg.Stats.cadvisor)
	}
	mux.HandleFunc("GET /metrics/probes", s.probes)
}

func (s *Server) routeStreams(mux *http.ServeMux) {
	for _, p := range []string{"/{container}", "/{uid}/{container}"} {
		for _, method := range []string{"GET", "POST"} {
			mux.HandleFunc(method+" /exec/{namespace}/{pod}"+p, s.exec)
			mux.HandleFunc(method+" /attach/{namespace}/{pod}"+p, s.attach)
		}
		mux.HandleFunc("POST /run/{namespace}/{pod}"+p, s.run)
	}
	for _, p := range []string{"", "/{uid}"} {
		for _, method := range []string{"GET", "POST"} {
			mux.HandleFunc(method+" /portForward/{namespace}/{pod}"+p, s.portForward)
		}
	}
}

func (s *Server) routeLogs(mux *http.ServeMux) {
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	if s.cfg.SystemLogs == "" {
		mux.HandleFunc("/logs/", disabled("logs endpoint is disabled."))
		return
	}
	mux.Handle("GET /logs/", http.StripPrefix("/logs/", s.systemLogs()))
}

func (s *Server) routeProfiling(mux *http.ServeMux) {
	if s.cfg.DebugFlags {
		mux.HandleFunc("/debug/flags/v", routes.StringFlagPutHandler(logs.GlogSetter))
	} else {
		mux.HandleFunc("/debug/flags/v", disabled("flags endpoint is disabled."))
	}
	if !s.cfg.Profiling {
		mux.HandleFunc("/debug/pprof/", disabled("profiling endpoint is disabled."))
		return
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}

// routeDisabled responds, in upstream's words, for handlers that are switched off.
func routeDisabled(mux *http.ServeMux) {
	for _, p := range []string{
		"/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/", "/debug/pprof/", "/logs/",
	} {
		mux.HandleFunc(p, disabled("Debug endpoints are disabled."))
	}
}

func disabled(message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, message, http.StatusMethodNotAllowed)
	}
}
