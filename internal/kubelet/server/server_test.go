package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/pki"
	"wherry.dev/test/fakecri"
	"wherry.dev/test/leaks"
	"wherry.dev/test/panics"
)

// TestMain ignores what the libraries leave behind when a forwarded port is refused: one goroutine
// waits for a reply to a stream that was reset, one tries to notify somebody who is gone.
func TestMain(m *testing.M) {
	os.Exit(leaks.Watch(panics.Watch(m), goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Stream).waitWriteReply"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/tools/portforward.(*PortForwarder).handleConnection.func1")).Run())
}

// onePod is a table with one pod.
type onePod struct {
	mu   sync.Mutex
	snap podworker.Snapshot
	next chan struct{}
}

func (p *onePod) get() podworker.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.snap
	s.Superseded = p.next
	return s
}

func (p *onePod) set(f func(*podworker.Snapshot)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.snap)
	close(p.next)
	p.next = make(chan struct{})
}

func (p *onePod) ByName(ns, name string) (podworker.Snapshot, bool) {
	s := p.get()
	return s, s.Pod.Namespace == ns && s.Pod.Name == name
}

func (p *onePod) Get(uid types.UID) (podworker.Snapshot, bool) {
	s := p.get()
	return s, s.Pod.UID == uid
}

func (p *onePod) List() []*podworker.Snapshot {
	s := p.get()
	return []*podworker.Snapshot{&s}
}

type fixture struct {
	t      *testing.T
	pods   *onePod
	rt     *fakecri.Runtime
	logs   string
	url    string
	client *http.Client
	review *reviews
}

// newFixture starts a server that accepts the token "good" of a user who may do everything except
// what deny says.
func newFixture(t *testing.T, deny ...string) *fixture {
	t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	f := &fixture{t: t, rt: fakecri.New(), logs: t.TempDir(), pods: &onePod{
		snap: podworker.Snapshot{Pod: pod, At: time.Now(), Input: podplan.Input{Pod: pod, Sandboxes: []podplan.Sandbox{{ID: "sb", Ready: true}}, Containers: []podplan.Container{
			{ID: "c0", Name: "c", State: podplan.Exited}, {ID: "c1", Name: "c", Attempt: 1, State: podplan.Running},
		}}}, next: make(chan struct{}),
	}}
	f.review = newReviews(t, deny...)
	ca, err := pki.LoadOrCreateCA(t.TempDir(), "ca", "ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile, err := ca.Issue(dir, "srv", pki.Leaf{CommonName: "n1", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	clientCert, clientKey, err := ca.Issue(dir, "client", pki.Leaf{CommonName: "admin", Organizations: []string{"g"}, Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	srv := New(Config{
		Auth: mustAuth(t, AuthConfig{
			Client: f.review.client, NodeName: "n1", ClientCAFile: ca.CertFile, Tokens: true, TokenTTL: time.Minute, AllowTTL: time.Minute, DenyTTL: time.Minute,
		}),
		Certificate: func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(certFile, keyFile)
			return &c, err
		},
		PodLogs: f.logs, Debugging: true, Profiling: true, Configz: map[string]string{"a": "b"},
		Stats: &Stats{Runtime: f.rt, Pods: f.pods, NodeName: "n1", RootDir: "/"},
	}, f.pods, fakecri.Service{Runtime: f.rt})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	pem, err := ca.Cert()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	pair, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &pair, nil
	}}}
	f.url, f.client = "https://"+l.Addr().String(), &http.Client{Transport: tr}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

func (f *fixture) do(method, path, token string) (int, string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	client := f.client
	if token != "admin" { // without the certificate
		tr := f.client.Transport.(*http.Transport).Clone()
		tr.TLSClientConfig.GetClientCertificate = nil
		tr.DisableKeepAlives = true
		client = &http.Client{Transport: tr}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestWhoMayAsk(t *testing.T) {
	f := newFixture(t, "stats")
	for _, tc := range []struct {
		path, token string
		code        int
	}{
		{"/pods", "", 401}, {"/pods", "bad", 401}, {"/pods", "good", 200}, {"/pods", "admin", 200}, {"/healthz", "admin", 200},
		{"/stats/summary", "admin", 403}, {"/metrics", "admin", 200}, {"/nonsense", "admin", 404}, {"/configz", "good", 200},
	} {
		if code, body := f.do("GET", tc.path, tc.token); code != tc.code {
			t.Errorf("%s as %q: %d %s", tc.path, tc.token, code, body)
		}
	}
	before := f.review.count("")
	f.do("GET", "/pods", "good")
	if f.review.count("") != before {
		t.Error("the answer was not cached")
	}
}

func TestABadTokenIsAskedForOnce(t *testing.T) {
	f := newFixture(t)
	for range 5 {
		if code, body := f.do("GET", "/pods", "bad"); code != http.StatusUnauthorized {
			t.Errorf("%d %s", code, body)
		}
	}
	if n := f.review.count("tokenreviews"); n != 1 {
		t.Errorf("%d token reviews for one token", n)
	}
}

// TestAFullCacheForgetsWhatWasNotUsed: strangers cannot make the kubelet forget its clients.
func TestAFullCacheForgetsWhatWasNotUsed(t *testing.T) {
	f := newFixture(t)
	a := mustAuth(t, AuthConfig{Client: f.review.client, NodeName: "n1", AllowTTL: time.Hour, DenyTTL: time.Hour})
	pods := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods", nil)
	ask := func(who string) {
		if ok, err := a.authorize(pods, &user.DefaultInfo{Name: who}); err != nil || !ok {
			t.Fatalf("%s: %v, %v", who, ok, err)
		}
	}
	for i := range 11000 {
		if i%1000 == 0 {
			ask("alice")
		}
		ask(fmt.Sprintf("stranger %d", i))
	}
	if n := f.review.count("alice"); n != 1 {
		t.Errorf("alice's rights were asked for %d times", n)
	}
}

// TestTokenOfABrowser comes as a subprotocol, because a browser's WebSocket cannot set headers.
func TestTokenOfABrowser(t *testing.T) {
	f := newFixture(t)
	for token, want := range map[string]string{"good": "user", "bad": ""} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/exec/ns/p/c", nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		r.Header.Set("Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io."+base64.RawURLEncoding.EncodeToString([]byte(token))+", v4.channel.k8s.io")
		who, err := mustAuth(t, AuthConfig{Client: f.review.client, NodeName: "n1", Tokens: true, TokenTTL: time.Minute}).authenticate(r)
		switch {
		case want == "":
			if err == nil {
				t.Errorf("%s: %v", token, who)
			}
		case err != nil || who.GetName() != want || r.Header.Get("Sec-WebSocket-Protocol") != "v4.channel.k8s.io":
			t.Errorf("%s: %v, %v, %s", token, who, err, r.Header.Get("Sec-WebSocket-Protocol"))
		}
	}
}

func TestFineGrainedPermissions(t *testing.T) {
	f := newFixture(t, "proxy")
	for path, code := range map[string]int{
		"/pods": 200, "/runningpods/": 200, "/healthz": 200, "/configz": 200, "/metrics/resource": 200, "/stats/summary": 200,
		"/containerLogs/ns/p/c": 403, "/exec/ns/p/c?command=x&output=1": 403, "/debug/pods/u": 403, "/debug/pods": 403, "/debug/pprof/cmdline": 403,
	} {
		if got, body := f.do("GET", path, "admin"); got != code {
			t.Errorf("%s: %d %s", path, got, body)
		}
	}
}

func (f *fixture) log(attempt int, lines ...string) {
	f.t.Helper()
	path := filepath.Join(f.logs, "ns_p_u", "c", fmt.Sprintf("%d.log", attempt))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(file, "2026-01-01T00:00:00Z stdout F %s\n", l); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		f.t.Fatal(err)
	}
}

func TestContainerLogs(t *testing.T) {
	f := newFixture(t)
	f.log(0, "before")
	f.log(1, "one", "two")
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/containerLogs/ns/p/c":                 {200, "one\ntwo\n"},
		"/containerLogs/ns/p/c?tailLines=1":     {200, "two\n"},
		"/containerLogs/ns/p/c?previous=true":   {200, "before\n"},
		"/containerLogs/ns/p/c?limitBytes=2":    {200, "on"},
		"/containerLogs/ns/p/c?timestamps=true": {200, "2026-01-01T00:00:00Z one\n2026-01-01T00:00:00Z two\n"},
		"/containerLogs/ns/p/c?sinceSeconds=1":  {200, ""},
		"/containerLogs/ns/p/c?stream=Stderr":   {200, ""},
		"/containerLogs/ns/p/c?tail=1":          {200, "two\n"},
		"/containerLogs/ns/p/c?tail=all":        {200, "one\ntwo\n"},
		"/containerLogs/ns/p/c?tailLines=-1":    {422, `{"message": "Invalid request. tailLines`},
		"/containerLogs/ns/p/c?limitBytes=0":    {422, `{"message": "Invalid request. limitBytes`},
		"/containerLogs/ns/p/c?sinceSeconds=0":  {422, `{"message": "Invalid request. sinceSeconds`},
		"/containerLogs/ns/p/c?stream=x":        {422, `{"message": "Invalid request. stream`},
		"/containerLogs/ns/p/c?tailLines=x":     {400, `{"message": "Unable to decode query. tailLines`},
		"/containerLogs/ns/p/c?sinceTime=x":     {400, `{"message": "Unable to decode query. sinceTime`},
		"/containerLogs/ns/p/none":              {404, `container "none" not found in pod "p"`},
		"/containerLogs/ns/none/c":              {404, `pod "none" does not exist`},
	} {
		if code, body := f.do("GET", path, "admin"); code != want.code || !strings.Contains(body, want.text) || want.text == "" && body != "" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	f.pods.set(func(s *podworker.Snapshot) {
		s.Input.Containers = nil
		s.Status = v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}}
	})
	if code, body := f.do("GET", "/containerLogs/ns/p/c", "admin"); code != 400 || !strings.Contains(body, `container "c" in pod "p" is waiting to start: trying and failing to pull image`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestFollowEndsWithTheContainer(t *testing.T) {
	f := newFixture(t)
	f.log(1, "one")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/containerLogs/ns/p/c?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	read := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q, %v, want %q", lines.Text(), lines.Err(), want)
		}
	}
	read("one")
	f.log(1, "two")
	read("two")
	f.log(1, "last")
	f.pods.set(func(s *podworker.Snapshot) {
		s.Input.Containers = []podplan.Container{{ID: "c1", Name: "c", Attempt: 1, State: podplan.Exited}}
	})
	read("last")
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("it goes on: %q %v", lines.Text(), lines.Err())
	}
}

// upgraded is a runtime whose streaming server is ours.
type upgraded struct {
	fakecri.Service
	url string
	req *runtimeapi.ExecRequest
}

func (s *upgraded) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	s.req = req
	return &runtimeapi.ExecResponse{Url: s.url + "/exec/token"}, nil
}

func TestExecIsProxied(t *testing.T) {
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = buf.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + r.Header.Get("Upgrade") + "\r\n\r\n")
		_ = buf.Flush()
		line, err := buf.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		_, _ = conn.Write([]byte("echo " + r.URL.Path + " " + line))
	}))
	defer back.Close()
	f := newFixture(t)
	rt := &upgraded{Service: fakecri.Service{Runtime: f.rt}, url: back.URL}
	srv := httptest.NewServer(New(Config{Debugging: true}, f.pods, rt).mux)
	defer srv.Close()
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST /exec/ns/p/c?command=ls&command=-l&input=1&output=1&tty=1&error=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	rd := bufio.NewReader(conn)
	resp, err := http.ReadResponse(rd, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	_ = resp.Body.Close()
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := rd.ReadString('\n'); err != nil || line != "echo /exec/token hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	if r := rt.req; r.ContainerId != "c1" || len(r.Cmd) != 2 || !r.Tty || !r.Stdin || !r.Stdout || r.Stderr {
		t.Errorf("%+v", r)
	}
}

func TestStreamsThatCannotBe(t *testing.T) {
	f := newFixture(t)
	for path, code := range map[string]int{
		"/exec/ns/p/c?command=x": 400, "/exec/ns/p/none?command=x&output=1": 500, "/exec/ns/none/c?command=x&output=1": 404,
		"/exec/ns/p/other/c?command=x&output=1": 500, "/attach/ns/p/c": 400, "/portForward/ns/p/other": 404, "/portForward/ns/none": 404,
		"/run/ns/none/c?cmd=x": 404, "/run/ns/p/none?cmd=x": 500, "/checkpoint/ns/p/c": 500, "/checkpoint/ns/p/c?timeout=x": 404, "/checkpoint/ns/p/none": 404, "/checkpoint/ns/none/c": 404,
	} {
		if got, body := f.do("POST", path, "admin"); got != code {
			t.Errorf("%s: %d %s", path, got, body)
		}
	}
}

func TestRunAndDebug(t *testing.T) {
	f := newFixture(t)
	f.rt.Exec = func(id string, cmd []string) ([]byte, int, error) {
		return []byte(id + " " + strings.Join(cmd, ",")), 0, nil
	}
	if code, body := f.do("POST", "/run/ns/p/c?cmd=a+b", "admin"); code != 200 || body != "c1 a,b" {
		t.Errorf("%d %q", code, body)
	}
	code, body := f.do("GET", "/debug/pods/u", "admin")
	var dump podworker.Dump
	if err := json.Unmarshal([]byte(body), &dump); code != 200 || err != nil || len(dump.Input.Containers) != 2 {
		t.Errorf("%d %v %s", code, err, body)
	}
	if plan := podplan.Next(dump.Input, time.Now()); plan.Life == "" {
		t.Error("a dump cannot be fed to a plan")
	}
	var list []podworker.Summary
	if code, body := f.do("GET", "/debug/pods", "admin"); code != 200 || json.Unmarshal([]byte(body), &list) != nil || len(list) != 1 || list[0].UID != "u" {
		t.Errorf("%d %s", code, body)
	}
}

// `wherry explain` used to read the worker's own dump, which changes with every version.
func TestReports(t *testing.T) {
	f := newFixture(t)
	var got report.Pod
	code, body := f.do("GET", "/debug/reports/ns/p/u", "admin")
	if err := json.Unmarshal([]byte(body), &got); code != 200 || err != nil ||
		got.Kind != report.Kind || got.APIVersion != report.APIVersion || got.UID != "u" || len(got.Starting) == 0 {
		t.Errorf("%d %v %s", code, err, body)
	}
	if code, body := f.do("GET", "/debug/reports/ns/p/another", "admin"); code != 404 || !strings.Contains(body, report.NoPod) {
		t.Errorf("a pod of the API server by its name alone: %d %s", code, body)
	}
	// The caller may know a static pod only by the UID of its mirror.
	f.pods.set(func(s *podworker.Snapshot) { s.Static = true })
	if code, body := f.do("GET", "/debug/reports/ns/p/mirror", "admin"); code != 200 || !strings.Contains(body, `"uid":"u"`) {
		t.Errorf("a static pod by its mirror: %d %s", code, body)
	}
}

func TestSummaryAndResourceMetrics(t *testing.T) {
	f := newFixture(t)
	code, body := f.do("GET", "/stats/summary", "admin")
	var sum struct {
		Node struct {
			NodeName string
			CPU      struct{ UsageCoreNanoSeconds uint64 }
			Memory   struct{ WorkingSetBytes uint64 }
		}
	}
	if err := json.Unmarshal([]byte(body), &sum); code != 200 || err != nil || sum.Node.NodeName != "n1" || sum.Node.CPU.UsageCoreNanoSeconds == 0 || sum.Node.Memory.WorkingSetBytes == 0 {
		t.Errorf("%d %v %s", code, err, body)
	}
	if code, body := f.do("GET", "/metrics/resource", "admin"); code != 200 || !strings.Contains(body, "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total ") || !strings.Contains(body, "resource_scrape_error 0\n") ||
		strings.Contains(body, "\nscrape_error") { // upstream hides the old name since 1.30
		t.Errorf("%d %s", code, body)
	}
}

func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
