package proxy

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestCondition: a change that waits too long makes the proxy ill, and a node that goes is for nobody.
func TestCondition(t *testing.T) {
	p, err := New(Config{Node: "n"}, informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, h http.HandlerFunc, code int, part string) {
		t.Helper()
		w := httptest.NewRecorder()
		h(w, nil)
		if w.Code != code || !strings.Contains(w.Body.String(), part) || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	check("no node", p.ServeHealthz, 503, `"nodeEligible":false,"healthy":true`)
	check("no node", p.ServeLivez, 200, `"healthy":true`)
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if err := p.nodes.Add(node); err != nil {
		t.Fatal(err)
	}
	check("a node", p.ServeHealthz, 200, `"nodeEligible":true`)
	if err := p.nodes.Update(&v1.Node{ObjectMeta: node.ObjectMeta, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: toBeDeleted}}}}); err != nil {
		t.Fatal(err)
	}
	check("a node that goes", p.ServeHealthz, 503, `"nodeEligible":false`)

	p.mark("a/b")
	_, _, since := p.take() // and the write fails
	p.mark("a/c")
	if !p.Condition(since.Add(lateAfter - 1)).Healthy {
		t.Error("ill too early")
	}
	if p.Condition(since.Add(lateAfter)).Healthy {
		t.Error("a change that failed a minute ago is forgotten")
	}
	if _, _, again := p.take(); again != since {
		t.Errorf("the oldest change is from %v, not %v", again, since)
	}
	p.written()
	if c := p.Condition(since.Add(time.Hour)); !c.Healthy || c.LastUpdated.Before(since) {
		t.Errorf("all is written: %+v", c)
	}
}

// TestHealthNodePort answers load balancers with upstream's words.
func TestHealthNodePort(t *testing.T) {
	well := true
	h := &health{proxy: func() bool { return well }, namespace: "ns", name: "web", ready: 2}
	answer := func() (int, string, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, nil)
		return w.Code, strings.Join(strings.Fields(w.Body.String()), ""), w.Header().Get("X-Load-Balancing-Endpoint-Weight")
	}
	check := func(code int, body, weight string) {
		t.Helper()
		if c, b, w := answer(); c != code || b != body || w != weight {
			t.Errorf("%d %s %s", c, b, w)
		}
	}
	check(200, `{"localEndpoints":2,"service":{"name":"web","namespace":"ns"},"serviceProxyHealthy":true}`, "2")
	h.ready = 0
	check(503, `{"localEndpoints":0,"service":{"name":"web","namespace":"ns"},"serviceProxyHealthy":true}`, "0")
	h.ready, well = 1, false
	check(503, `{"localEndpoints":1,"service":{"name":"web","namespace":"ns"},"serviceProxyHealthy":false}`, "1")
}
