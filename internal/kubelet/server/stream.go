package server

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// pod finds the pod that a request names, and answers when there is none.
func (s *Server) pod(w http.ResponseWriter, r *http.Request) (podworker.Snapshot, bool) {
	p, ok := s.pods.ByName(r.PathValue("namespace"), r.PathValue("pod"))
	if uid := r.PathValue("uid"); ok && uid != "" && uid != string(p.Pod.UID) {
		ok = false
	}
	if !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
	}
	return p, ok
}

// running finds the container's live instance.
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

// container finds the live instance that a request names, and answers when there is none.
func (s *Server) container(w http.ResponseWriter, r *http.Request) (podworker.Snapshot, string, bool) {
	p, ok := s.pod(w, r)
	if !ok {
		return p, "", false
	}
	c, ok := running(p, r.PathValue("container"))
	if !ok {
		http.Error(w, fmt.Sprintf("container not found (%q)", r.PathValue("container")), http.StatusNotFound)
	}
	return p, c.ID, ok
}

// flag reads a query parameter that is on as "1" or "true".
func flag(q url.Values, name string) bool {
	on, err := strconv.ParseBool(q.Get(name))
	return err == nil && on
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	_, id, ok := s.container(w, r)
	if !ok {
		return
	}
	q := r.URL.Query()
	req := &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: q["command"], Tty: flag(q, "tty"), Stdin: flag(q, "input"), Stdout: flag(q, "output"), Stderr: flag(q, "error"),
	}
	req.Stderr = req.Stderr && !req.Tty
	if !req.Stdin && !req.Stdout && !req.Stderr {
		http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
		return
	}
	resp, err := s.runtime.Exec(r.Context(), req)
	s.proxy(w, r, resp.GetUrl(), err)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	p, id, ok := s.container(w, r)
	if !ok {
		return
	}
	q := r.URL.Query()
	spec := podplan.FindContainer(p.Pod, r.PathValue("container"))
	if spec == nil {
		http.Error(w, fmt.Sprintf("container %s not found in pod %s", r.PathValue("container"), r.PathValue("pod")), http.StatusNotFound)
		return
	}
	// Whether there is a terminal was settled when the container was made.
	req := &runtimeapi.AttachRequest{
		ContainerId: id, Tty: spec.TTY, Stdin: flag(q, "input"), Stdout: flag(q, "output"), Stderr: flag(q, "error") && !spec.TTY,
	}
	if !req.Stdin && !req.Stdout && !req.Stderr {
		http.Error(w, "you must specify at least 1 of stdin, stdout, stderr", http.StatusBadRequest)
		return
	}
	resp, err := s.runtime.Attach(r.Context(), req)
	s.proxy(w, r, resp.GetUrl(), err)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pod(w, r)
	if !ok {
		return
	}
	i := slices.IndexFunc(p.Input.Sandboxes, func(sb podplan.Sandbox) bool { return sb.Ready })
	if i < 0 {
		http.Error(w, fmt.Sprintf("pod not found (%q)", p.Pod.Name+"_"+p.Pod.Namespace), http.StatusNotFound)
		return
	}
	req := &runtimeapi.PortForwardRequest{PodSandboxId: p.Input.Sandboxes[i].ID}
	for _, list := range r.URL.Query()["port"] {
		for one := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseUint(one, 10, 16)
			if err != nil || n == 0 {
				http.Error(w, fmt.Sprintf("port %q must be a number from 1 to 65535", one), http.StatusBadRequest)
				return
			}
			req.Port = append(req.Port, int32(n))
		}
	}
	resp, err := s.runtime.PortForward(r.Context(), req)
	s.proxy(w, r, resp.GetUrl(), err)
}

// proxy hands an upgrade over to the address that the runtime gave.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request, address string, err error) {
	if err != nil {
		http.Error(w, status.Convert(err).Message(), httpCode(err))
		return
	}
	u, err := url.Parse(address)
	if err != nil {
		http.Error(w, fmt.Sprintf("the runtime's streaming address %q: %v", address, err), http.StatusInternalServerError)
		return
	}
	proxy.NewUpgradeAwareHandler(u, nil, false, true, responder{}).ServeHTTP(w, r)
}

func httpCode(err error) int {
	switch status.Code(err) {
	case codes.NotFound:
		return http.StatusNotFound
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	default:
		return http.StatusInternalServerError
	}
}

// responder answers when a stream could not be proxied.
type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, "streaming from the container runtime: "+err.Error(), http.StatusInternalServerError)
}

// run runs a command and answers with its output.
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
