package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	heard   writes
	changed chan struct{} // closed at every write
	held    chan struct{} // closed when bindings may fail
}

// writes are what a scheduler has written about the pods that it is asked about.
type writes struct {
	pods    map[string]said   // as namespace/name
	group   string            // the one that the pods are of, if any, as namespace/name
	result  *metav1.Condition // the first PodGroupInitiallyScheduled of the group
	victims []string          // pods that were deleted for them
	last    time.Time
}

// said is what a scheduler has written about a pod.
type said struct {
	node      string           // where it is to be bound
	condition *v1.PodCondition // the first PodScheduled; it comes last, also after a binding that failed
	nominated string
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
		done: make(chan struct{}), changed: make(chan struct{}), held: make(chan struct{}),
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

// expect begins to listen for what is written about pods, and about their group, if they have one.
func (t *tap) expect(group string, pods ...*v1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.releaseLocked()
	t.heard, t.held = writes{pods: map[string]said{}, group: group}, make(chan struct{})
	if group == "" {
		close(t.held)
	}
	for _, p := range pods {
		t.heard.pods[nameOf(p)] = said{}
	}
}

// release lets the bindings of a group's pods fail. Before that none of the room that they were given is free again.
func (t *tap) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.releaseLocked()
}

func (t *tap) releaseLocked() {
	select {
	case <-t.held:
	default:
		close(t.held)
	}
}

// failed waits until bindings may fail.
func (t *tap) failed(ctx context.Context) {
	t.mu.Lock()
	held := t.held
	t.mu.Unlock()
	select {
	case <-held:
	case <-ctx.Done():
	}
}

// so returns what was written so far, and a channel that is closed when there is more.
func (t *tap) so() (writes, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	heard := t.heard
	heard.pods = maps.Clone(heard.pods)
	return heard, t.changed
}

// nameOf returns namespace/name.
func nameOf(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// write answers a write.
func (t *tap) write(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	path, _ := strings.CutSuffix(r.URL.Path, "/status")
	resource, name, sub := objectOfPath(path)
	if sub != "binding" {
		defer t.note(r.Method, resource, name, sub, body)
	}
	switch {
	case sub == "binding":
		t.note(r.Method, resource, name, sub, body)
		t.failed(r.Context())
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

// objectOfPath returns the object of a path …/namespaces/NS/RESOURCE/NAME[/SUB], as namespace/name; nothing for any other.
func objectOfPath(path string) (resource, name, sub string) {
	_, path, _ = strings.Cut(path, "/namespaces/")
	parts := strings.Split(path, "/")
	if len(parts) < 3 {
		return "", "", ""
	}
	if len(parts) > 3 {
		sub = parts[3]
	}
	return parts[1], parts[0] + "/" + parts[2], sub
}

// note keeps a write, if it is about what is asked about, or deletes another pod for it.
func (t *tap) note(method, resource, name, sub string, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := &t.heard
	w.last = time.Now()
	pod, asked := w.pods[name]
	switch {
	case resource == "podgroups" && name == w.group && w.result == nil:
		w.result = conditionOf(body)
	case resource != "pods":
		return
	case method == http.MethodDelete && !asked:
		w.victims = append(w.victims, name)
	case !asked:
		return
	case sub == "binding" && pod.condition == nil:
		pod.node = boundTo(body)
		w.pods[name] = pod
	case method == http.MethodPatch && pod.condition == nil:
		pod.condition, pod.nominated = patched(body)
		w.pods[name] = pod
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

// conditionOf returns the condition PodGroupInitiallyScheduled that a patch of a group's status has, or nil.
func conditionOf(patch []byte) *metav1.Condition {
	var p struct {
		Status schedulingv1beta1.PodGroupStatus
	}
	if err := json.NewDecoder(bytes.NewReader(patch)).Decode(&p); err != nil {
		return nil
	}
	return meta.FindStatusCondition(p.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
}
