package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// lookWithin is how long to wait for a pod's worker to look at the pod for the first time, before a
// request is answered without that look: the worker of a static pod may itself wait until its
// predecessor is gone.
const lookWithin = 10 * time.Second

// named returns the pod that a request names. Until its worker has first looked at it, nobody knows
// what runs of it: after a start of the kubelet, named waits for that look.
func (s *Server) named(r *http.Request) (podworker.Snapshot, bool) {
	ctx, cancel := context.WithTimeout(r.Context(), lookWithin)
	defer cancel()
	for {
		p, ok := s.pods.ByName(r.PathValue("namespace"), r.PathValue("pod"))
		if !ok || !p.At.IsZero() {
			return p, ok
		}
		select {
		case <-p.Superseded:
		case <-ctx.Done():
			return p, ok
		}
	}
}

// pod returns the pod that a request names, and responds with an error if there is none.
func (s *Server) pod(w http.ResponseWriter, r *http.Request) (podworker.Snapshot, bool) {
	p, ok := s.named(r)
	if !ok {
		http.Error(w, report.NoPod, http.StatusNotFound)
	}
	return p, ok
}

// isUID reports whether a pod has the UID that a request names, if it names any.
func isUID(r *http.Request, p podworker.Snapshot) bool {
	uid := r.PathValue("uid")
	return uid == "" || uid == string(p.Pod.UID)
}

// running returns the container's live instance.
func running(p podworker.Snapshot, name string) (podplan.Container, bool) {
	var found podplan.Container
	ok := false
	for _, c := range p.Input.Containers {
		if c.Name == name && c.Live() && (!ok || c.Attempt > found.Attempt) {
			found, ok = c, true
		}
	}
	return found, ok
}

// container returns the live instance that a request names, and responds with an error if there is
// none (500, as upstream).
func (s *Server) container(w http.ResponseWriter, r *http.Request) (podworker.Snapshot, string, bool) {
	p, ok := s.pod(w, r)
	if !ok {
		return p, "", false
	}
	c, ok := running(p, r.PathValue("container"))
	if !ok || !isUID(r, p) {
		http.Error(w, fmt.Sprintf("container not found (%q)", r.PathValue("container")), http.StatusInternalServerError)
		return p, "", false
	}
	return p, c.ID, true
}

// flag reads a query parameter, which is on if it is "1" or "true".
func flag(q url.Values, name string) bool {
	on, err := strconv.ParseBool(q.Get(name))
	return err == nil && on
}

// streams returns the streams that a request asks for; a terminal has no stderr of its own.
func streams(w http.ResponseWriter, r *http.Request) (translator.Options, bool) {
	q := r.URL.Query()
	o := translator.Options{Tty: flag(q, "tty"), Stdin: flag(q, "input"), Stdout: flag(q, "output"), Stderr: flag(q, "error")}
	o.Stderr = o.Stderr && !o.Tty
	if !o.Stdin && !o.Stdout && !o.Stderr {
		http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
		return o, false
	}
	return o, true
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	o, ok := streams(w, r)
	if !ok {
		return
	}
	_, id, ok := s.container(w, r)
	if !ok {
		return
	}
	resp, err := s.runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: r.URL.Query()["command"], Tty: o.Tty, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	proxyStream(w, r, "exec", resp.GetUrl(), err, o)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	o, ok := streams(w, r)
	if !ok {
		return
	}
	p, id, ok := s.container(w, r)
	if !ok {
		return
	}
	spec := pods.FindContainer(p.Pod, r.PathValue("container"))
	if spec == nil {
		http.Error(w, fmt.Sprintf("container %s not found in pod %s", r.PathValue("container"), r.PathValue("pod")), http.StatusInternalServerError)
		return
	}
	// Whether there is a terminal was decided when the container was created.
	o.Tty = spec.TTY
	o.Stderr = o.Stderr && !o.Tty
	resp, err := s.runtime.Attach(r.Context(), &runtimeapi.AttachRequest{
		ContainerId: id, Tty: o.Tty, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	proxyStream(w, r, "attach", resp.GetUrl(), err, o)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	tunnel := wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	req := &runtimeapi.PortForwardRequest{}
	if wsstream.IsWebSocketRequest(r) && !tunnel {
		var err error
		if req.Port, err = ports(r.URL.Query()["port"]); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	p, ok := s.pod(w, r)
	if !ok {
		return
	}
	if !isUID(r, p) {
		http.Error(w, "pod not found", http.StatusNotFound)
		return
	}
	i := slices.IndexFunc(p.Input.Sandboxes, func(sb podplan.Sandbox) bool { return sb.Ready })
	if i < 0 {
		http.Error(w, fmt.Sprintf("pod not found (%q)", p.Pod.Name+"_"+p.Pod.Namespace), http.StatusInternalServerError)
		return
	}
	req.PodSandboxId = p.Input.Sandboxes[i].ID
	resp, err := s.runtime.PortForward(r.Context(), req)
	h, ok := upgrade(w, resp.GetUrl(), err)
	if !ok {
		return
	}
	if tunnel {
		metrics.WebSockets.WithLabelValues("portforward").Inc()
		h = translator.NewTunnelingHandler(h)
	}
	h.ServeHTTP(w, r)
}

// ports parses the query of a port-forward over plain WebSockets, which lists its ports in advance.
func ports(lists []string) ([]int32, error) {
	if len(lists) == 0 {
		return nil, errors.New(`query parameter "port" is required`)
	}
	var out []int32
	for _, list := range lists {
		if list == "" {
			return nil, errors.New(`query parameter "port" cannot be empty`)
		}
		for one := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseUint(one, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("unable to parse %q as a port: %w", list, err)
			}
			if n < 1 {
				return nil, fmt.Errorf("port %q must be > 0", list)
			}
			out = append(out, int32(n))
		}
	}
	return out, nil
}

// proxyStream passes an exec or attach on to the address that the runtime returned. Runtimes know
// SPDY and the older WebSocket protocols; v5, which can close stdin, is translated here.
func proxyStream(w http.ResponseWriter, r *http.Request, what, address string, err error, o translator.Options) {
	h, ok := upgrade(w, address, err)
	if !ok {
		return
	}
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		u, err := url.Parse(address)
		if err != nil { // it was parsed before
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		metrics.WebSockets.WithLabelValues(what).Inc()
		h = translator.NewStreamTranslatorHandler(u, nil, 0, o)
	}
	h.ServeHTTP(w, r)
}

// upgrade returns a handler that proxies an upgraded connection to the runtime; if it cannot, it
// responds with an error.
func upgrade(w http.ResponseWriter, address string, err error) (http.Handler, bool) {
	if err != nil {
		http.Error(w, status.Convert(err).Message(), httpCode(err))
		return nil, false
	}
	u, err := url.Parse(address)
	if err != nil {
		http.Error(w, fmt.Sprintf("invalid streaming address %q from the runtime: %v", address, err), http.StatusInternalServerError)
		return nil, false
	}
	return proxy.NewUpgradeAwareHandler(u, nil, false, true, responder{}), true
}

func httpCode(err error) int {
	switch status.Code(err) {
	case codes.NotFound:
		return http.StatusNotFound
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	default:
		return http.StatusInternalServerError
	}
}

// responder responds if a stream could not be proxied.
type responder struct{}

func (responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	klog.FromContext(r.Context()).Error(err, "Error while proxying request", "path", r.URL.Path)
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// run runs a command and responds with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	_, id, ok := s.container(w, r)
	if !ok {
		return
	}
	stdout, stderr, err := s.runtime.ExecSync(r.Context(), id, strings.Split(r.URL.Query().Get("cmd"), " "), 0)
	if err != nil {
		http.Error(w, fmt.Sprintf("%s%s%v", stdout, stderr, err), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(append(stdout, stderr...))
}
