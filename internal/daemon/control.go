package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"path/filepath"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/image"
	"wherry.dev/internal/inbound"
	"wherry.dev/internal/trace"
)

// ControlSocket is where the daemon of a run dir serves the wherry commands for which the
// Kubernetes API has no words. Only root can open it.
func ControlSocket(runDir string) string { return filepath.Join(runDir, "control.sock") }

// control serves traces, the image store, the cluster's data as a whole, and profiles of the process.
type control struct {
	images *image.Store // nil if they are those of the runtime at endpoint
	traces *trace.Store

	endpoint string

	// elsewhere returns what other servers know of an object; nil if there can be none.
	elsewhere func(ctx context.Context, uid string) []trace.Trace

	api *atomic.Pointer[apiserver.Server] // of this process, once it serves; nil if it has none
}

func (c *control) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /trace", c.trace)
	mux.HandleFunc("GET /etcd/snapshot", c.snapshot)
	mux.HandleFunc("GET /etcd/members", c.members)
	mux.HandleFunc("DELETE /etcd/members", c.removeMember)
	mux.HandleFunc("POST /etcd/compact", c.compact)
	mux.HandleFunc("POST /etcd/defrag", c.defragment)
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /images":         c.list,
		"DELETE /images":      c.remove,
		"POST /images/import": c.importArchive,
		"POST /images/pull":   c.pull,
		"POST /images/prune":  c.prune,
		"GET /images/pulls":   c.pulls,
		"GET /images/export":  c.export,
	} {
		if c.images == nil {
			h = func(w http.ResponseWriter, _ *http.Request) {
				answerError(w, http.StatusNotImplemented, errImagesElsewhere(c.endpoint))
			}
		}
		mux.HandleFunc(pattern, h)
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// serve serves on the socket until ctx ends.
func (c *control) serve(ctx context.Context, path string) error {
	l, err := inbound.ListenRoot(ctx, path)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	srv := &http.Server{Handler: c.handler(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("control socket: %w", err)
	}
	return nil
}

func (c *control) trace(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	t, ok := c.traces.Pod(q.Get("uid"))
	if !ok && q.Get("name") != "" {
		t, ok = c.traces.ByName(q.Get("namespace"), q.Get("name"))
	}
	if c.elsewhere != nil {
		for _, other := range c.elsewhere(r.Context(), q.Get("uid")) {
			t.Add(other)
			ok = true
		}
	}
	if !ok {
		answerError(w, http.StatusNotFound, errNoTrace)
		return
	}
	answer(w, t)
}

var errNoTrace = errors.New("no trace of this pod: wherry keeps traces in memory, since it last started")

func (c *control) list(w http.ResponseWriter, _ *http.Request) { answer(w, c.images.List()) }

func (c *control) remove(w http.ResponseWriter, r *http.Request) {
	if err := c.images.Remove(r.Context(), r.URL.Query().Get("ref")); err != nil {
		answerError(w, statusOf(err), err)
		return
	}
	answer(w, struct{}{})
}

func (c *control) importArchive(w http.ResponseWriter, r *http.Request) {
	imgs, err := c.images.Import(r.Context(), r.URL.Query().Get("path"))
	if err != nil {
		answerError(w, http.StatusUnprocessableEntity, err)
		return
	}
	answer(w, imgs)
}

func (c *control) prune(w http.ResponseWriter, r *http.Request) {
	imgs, err := c.images.Prune(r.Context())
	if err != nil {
		answerError(w, http.StatusInternalServerError, err)
		return
	}
	answer(w, imgs)
}

func errImagesElsewhere(endpoint string) error {
	return fmt.Errorf("the runtime at %s manages this node's images; use crictl or the runtime's own tools", endpoint)
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, image.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, image.ErrInUse):
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		klog.Background().V(2).Info("The client of the control socket disconnected", "err", err)
	}
}

func answerError(w http.ResponseWriter, status int, err error) {
	http.Error(w, err.Error(), status)
}
