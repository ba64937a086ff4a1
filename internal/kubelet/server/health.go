package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// check is one part of the kubelet's health.
type check struct {
	name string
	why  func() error
}

// checks are upstream's; ping and log are healthy as long as there is any response.
func (s *Server) checks() []check {
	well := func() error { return nil }
	loop := s.cfg.Healthy
	if loop == nil {
		loop = well
	}
	return []check{{"ping", well}, {"log", well}, {"syncloop", loop}}
}

func (s *Server) routeHealth(mux *http.ServeMux) {
	all := s.checks()
	for _, p := range []string{"/healthz", "/healthz/{$}"} {
		mux.HandleFunc("GET "+p, func(w http.ResponseWriter, r *http.Request) { answerHealth(w, r, all) })
	}
	for _, c := range all {
		mux.HandleFunc("GET /healthz/"+c.name, func(w http.ResponseWriter, _ *http.Request) {
			if err := c.why(); err != nil {
				http.Error(w, "internal server error: "+err.Error(), http.StatusInternalServerError)
				return
			}
			_, _ = w.Write([]byte("ok"))
		})
	}
}

// answerHealth runs all checks except those in ?exclude=, and lists them if ?verbose is set or one
// failed.
func answerHealth(w http.ResponseWriter, r *http.Request, all []check) {
	q := r.URL.Query()
	var report strings.Builder
	failed := false
	for _, c := range all {
		err := c.why()
		switch {
		case slices.Contains(q["exclude"], c.name):
			fmt.Fprintf(&report, "[+]%s excluded: ok\n", c.name)
		case err != nil:
			failed = true
			fmt.Fprintf(&report, "[-]%s failed: %v\n", c.name, err)
		default:
			fmt.Fprintf(&report, "[+]%s ok\n", c.name)
		}
	}
	if failed {
		http.Error(w, report.String()+"healthz check failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !q.Has("verbose") {
		_, _ = w.Write([]byte("ok"))
		return
	}
	_, _ = w.Write([]byte(report.String() + "healthz check passed\n"))
}
