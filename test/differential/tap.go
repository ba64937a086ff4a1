package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// tap stands between a scheduler and the API server. It lets reads through, and answers writes itself: it keeps
// them, and nothing comes of them. Bindings fail, so that the scheduler gives back what it has promised the pod.
type tap struct {
	server *http.Server
	url    string
	client *http.Client // for the API server, with our rights
	target *url.URL
	done   chan struct{} // closed when the server has ended

	mu      sync.Mutex
	pod     string // the one that is asked about, as namespace/name
	heard   writes
	changed chan struct{} // closed at every write
}

// writes are what a scheduler has written about the pod.
type writes struct {
	node      string           // where it is to be bound
	condition *v1.PodCondition // the first PodScheduled; it comes last, also after a binding that failed
	nominated string
	victims   []string // pods that were deleted for it
	last      time.Time
}

// newTap starts a tap.
func newTap(ctx context.Context, cfg *rest.Config) (*tap, error) {
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	through := httputil.NewSingleHostReverseProxy(target)
	through.Transport, through.FlushInterval = transport, -1
	through.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
	t := &tap{
		url: "http://" + l.Addr().String(), client: &http.Client{Transport: transport}, target: target,
		done: make(chan struct{}), changed: make(chan struct{}),
	}
	either := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			through.ServeHTTP(w, r)
		} else {
			t.write(w, r)
		}
	}
	t.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(either)}
	go func() {
		defer close(t.done)
		_ = t.server.Serve(l) // until it is closed
	}()
	return t, nil
}

func (t *tap) stop() error {
	err := t.server.Close()
	<-t.done
	return err
}

// expect begins to listen for what is written about a pod.
func (t *tap) expect(pod string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pod, t.heard = pod, writes{}
}

// so returns what was written so far, and a channel that is closed when there is more.
func (t *tap) so() (writes, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.heard, t.changed
}

// write answers a write.
func (t *tap) write(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	path, _ := strings.CutSuffix(r.URL.Path, "/status")
	namespace, name, sub := podOfPath(path)
	defer t.note(r.Method, namespace+"/"+name, sub, body)
	switch {
	case sub == "binding":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "nothing is bound here",
		})
	case r.Method == http.MethodPost: // an event
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	default:
		t.asItIs(w, r, path)
	}
}

// asItIs answers with the object as the API server has it.
func (t *tap) asItIs(w http.ResponseWriter, r *http.Request, path string) {
	get, err := http.NewRequestWithContext(r.Context(), http.MethodGet, t.target.JoinPath(path).String(), nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	get.Header.Set("Accept", "application/json")
	resp, err := t.client.Do(get)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

// podOfPath returns the pod of a path /api/v1/namespaces/NS/pods/NAME[/SUB]; nothing for any other.
func podOfPath(path string) (namespace, name, sub string) {
	parts := strings.Split(strings.TrimPrefix(path, "/api/v1/namespaces/"), "/")
	if len(parts) < 3 || parts[1] != "pods" {
		return "", "", ""
	}
	if len(parts) > 3 {
		sub = parts[3]
	}
	return parts[0], parts[2], sub
}

// note keeps a write, if it is about the pod that is asked about, or deletes another one for it.
func (t *tap) note(method, pod, sub string, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard.last = time.Now()
	switch {
	case method == http.MethodDelete && pod != t.pod && pod != "/":
		t.heard.victims = append(t.heard.victims, pod)
	case pod != t.pod:
		return
	case sub == "binding" && t.heard.condition == nil:
		t.heard.node = boundTo(body)
	case method == http.MethodPatch && t.heard.condition == nil:
		t.heard.condition, t.heard.nominated = patched(body)
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// boundTo returns the node of a binding, in JSON or protobuf.
func boundTo(body []byte) string {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &v1.Binding{})
	if b, ok := obj.(*v1.Binding); ok && err == nil {
		return b.Target.Name
	}
	return "?"
}

// patched returns the PodScheduled condition that a patch of a pod's status has, or nil, and the nominated node.
func patched(patch []byte) (*v1.PodCondition, string) {
	var p struct{ Status v1.PodStatus }
	if err := json.NewDecoder(bytes.NewReader(patch)).Decode(&p); err != nil {
		return nil, ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled {
			return &c, p.Status.NominatedNodeName
		}
	}
	return nil, ""
}
