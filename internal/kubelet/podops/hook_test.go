package podops

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/kubelet/podplan"
)

// events records the events.
type events struct {
	mu   sync.Mutex
	told []string
}

func (e *events) Eventf(_ runtime.Object, kind, reason, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = append(e.told, kind+" "+reason+": "+fmt.Sprintf(format, args...))
}

// TestHooksByHTTP, including a sidecar's: a named port, headers, a redirect, and HTTP where HTTPS
// was specified.
func TestHooksByHTTP(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another host was asked") }))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.URL.String()+" "+r.Header.Get("User-Agent")+" "+r.Header.Get("Authorization"))
		if r.URL.Path == "/away" {
			u, _ := url.Parse(other.URL)
			http.Redirect(w, r, "http://localhost:"+u.Port(), http.StatusFound)
		}
		w.WriteHeader(http.StatusInternalServerError) // a hook only sends the request
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	always := v1.ContainerRestartPolicyAlways
	in := &podplan.Input{
		Pod: &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{{
			Name: "side", RestartPolicy: &always, Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(port)}},
		}}}},
		Sandboxes: []podplan.Sandbox{{Ready: true, IPs: []string{"127.0.0.1"}}},
	}
	told := &events{}
	o := New(Config{}, Deps{Events: told})
	hook := func(get v1.HTTPGetAction) {
		t.Helper()
		get.Port = intstr.FromString("web")
		if err := o.handle(t.Context(), in, podplan.Op{Name: "side"}, &v1.LifecycleHandler{HTTPGet: &get}); err != nil {
			t.Error(err)
		}
	}
	hook(v1.HTTPGetAction{Path: "/bye?now=1"})
	hook(v1.HTTPGetAction{Path: "/away", HTTPHeaders: []v1.HTTPHeader{{Name: "User-Agent", Value: "mine"}}})
	if len(told.told) != 0 {
		t.Errorf("events %q", told.told)
	}
	hook(v1.HTTPGetAction{Path: "tls", Scheme: v1.URISchemeHTTPS, HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: "secret"}}})
	if want := []string{"/bye?now=1 kube-lifecycle/1.37 ", "/away mine ", "/tls kube-lifecycle/1.37 "}; !slices.Equal(seen, want) {
		t.Errorf("asked %q, want %q", seen, want)
	}
	want := "Warning LifecycleHTTPFallback: request to HTTPS lifecycle hook " + u.Host + " got HTTP response, retry with HTTP succeeded"
	if !slices.Equal(told.told, []string{want}) {
		t.Errorf("events %q", told.told)
	}
	in.Sandboxes = nil
	if err := o.handle(t.Context(), in, podplan.Op{Name: "side"}, &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt(port)}}); err == nil {
		t.Error("a pod without an address was asked")
	}
}
