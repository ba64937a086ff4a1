package prober

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		serve()
	}
	os.Exit(leaks.Watch(m).Run())
}

func address(t *testing.T, rawURL string) (string, int) {
	t.Helper()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimPrefix(rawURL, "http://"), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return host, n
}

func TestHTTP(t *testing.T) {
	mux := http.NewServeMux()
	var mu sync.Mutex
	seen := http.Header{}
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = r.Header.Clone()
		seen.Set("Host", r.Host)
		seen.Set("Query", r.URL.RawQuery)
	})
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/bad", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://example.invalid/", http.StatusFound)
	})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	host, port := address(t, srv.URL)
	for path, want := range map[string]struct {
		verdict verdict
		text    string
	}{
		"/ok?a=b": {success, ""}, "ok": {success, ""}, "/bad": {failure, "HTTP probe failed with statuscode: 503"},
		"/here": {failure, "HTTP probe failed with statuscode: 503"}, "/away": {warning, "Probe terminated redirects"}, "/slow": {failure, "context deadline exceeded"},
	} {
		get := &v1.HTTPGetAction{Path: path, Port: intstr.FromInt(port), HTTPHeaders: []v1.HTTPHeader{{Name: "Host", Value: "h.example"}, {Name: "X", Value: "y"}}}
		timeout := enough
		if path == "/slow" {
			timeout = short
		}
		a := newNetwork(dial).httpGet(t.Context(), get, nil, host, timeout)
		if a.verdict != want.verdict || !strings.Contains(a.text, want.text) {
			t.Errorf("%s: %+v", path, a)
		}
		if path == "/ok?a=b" && (seen.Get("Host") != "h.example" || seen.Get("X") != "y" || seen.Get("User-Agent") != userAgent || seen.Get("Query") != "a=b") {
			t.Errorf("headers: %v", seen)
		}
	}
	tls := httptest.NewTLSServer(mux)
	defer tls.Close()
	host, port = address(t, tls.URL)
	if a := newNetwork(dial).httpGet(t.Context(), &v1.HTTPGetAction{Path: "/ok", Scheme: v1.URISchemeHTTPS, Port: intstr.FromInt(port)}, nil, host, enough); a.verdict != success {
		t.Errorf("https: %+v", a)
	}
	if a := newNetwork(dial).httpGet(t.Context(), &v1.HTTPGetAction{Port: intstr.FromString("web")}, &v1.Container{}, host, enough); a.err == nil {
		t.Errorf("a port that is not there: %+v", a)
	}
}

func TestTCPAndGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	h := health.NewServer()
	h.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(srv, h)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	host, port := address(t, l.Addr().String())
	if a := newNetwork(dial).tcpConnect(t.Context(), host, port, enough); a.verdict != success {
		t.Errorf("tcp: %+v", a)
	}
	for service, want := range map[string]verdict{"": success, "down": failure, "unknown": failure} {
		if a := newNetwork(dial).grpcHealth(t.Context(), host, port, service, enough); a.verdict != want {
			t.Errorf("grpc %q: %+v", service, a)
		}
	}
	srv.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if a := newNetwork(dial).tcpConnect(t.Context(), host, port, enough); a.verdict != failure || !strings.Contains(a.text, "connection refused") {
		t.Errorf("tcp to a closed port: %+v", a)
	}
	if a := newNetwork(dial).grpcHealth(t.Context(), host, port, "", time.Second); a.verdict != failure {
		t.Errorf("grpc to a closed port: %+v", a)
	}
}

// enough is the timeout of a probe that gets an answer, however slow the machine is; short is that
// of one that gets none, which still has to be long enough for a connection.
const (
	enough = time.Minute
	short  = 2 * time.Second
)

type execs func() error

func (f execs) ExecSync(context.Context, string, []string, time.Duration) ([]byte, []byte, error) {
	return []byte("out"), nil, f()
}

type noEvents struct {
	mu   sync.Mutex
	told []string
}

func (n *noEvents) Eventf(_ runtime.Object, _, reason, format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, reason+": "+fmt.Sprintf(format, args...))
}

func (n *noEvents) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.told)
}

func TestExecAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want verdict
	}{
		"ok": {nil, success}, "exit": {utilexec.CodeExitError{Err: errors.New("x"), Code: 3}, failure},
		"timeout": {status.Error(codes.DeadlineExceeded, "x"), failure}, "client's timeout": {fmt.Errorf("%w: x", remote.ErrCommandTimedOut), failure}, "broken": {errors.New("x"), unknown},
	} {
		m := New(execs(func() error { return tc.err }), &noEvents{}, nil, nil)
		if a := m.exec(t.Context(), &target{}, []string{"x"}, time.Second); a.verdict != tc.want {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// The first probe comes right after the initial delay, not at a random time of the
// period as with upstream's kubelet.
func TestTimesAndThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		began := time.Now()
		fail := true
		run := execs(func() error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(began))
			if fail {
				return utilexec.CodeExitError{Err: errors.New("x"), Code: 1}
			}
			return nil
		})
		times := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(at)
		}
		var woken atomic.Int32
		ev := &noEvents{}
		m := New(run, ev, func(types.UID) { woken.Add(1) }, nil)
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", ReadinessProbe: &v1.Probe{
			ProbeHandler:        v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"x"}}},
			InitialDelaySeconds: 5, PeriodSeconds: 3, FailureThreshold: 2, SuccessThreshold: 2,
		}}}}}
		pod.UID = "u"
		ctx, cancel := context.WithCancel(t.Context())
		targets := []podplan.ProbeTarget{{ID: "id", Name: "c", Since: began}}
		m.Sync(ctx, pod, []string{"127.0.0.1"}, targets)
		time.Sleep(5*time.Second + time.Millisecond)
		synctest.Wait()
		if len(times()) != 1 || times()[0] != 5*time.Second || m.Results("u")["id"].Ready != nil {
			t.Errorf("first probe: %v, %+v", times(), m.Results("u"))
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if r := m.Results("u")["id"].Ready; r == nil || *r || woken.Load() != 1 {
			t.Errorf("after two failures: %v, woken %d", r, woken.Load())
		}
		mu.Lock()
		fail = false
		mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if *m.Results("u")["id"].Ready {
			t.Error("ready after one success of two")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !*m.Results("u")["id"].Ready || woken.Load() != 2 {
			t.Errorf("not ready after two successes, woken %d", woken.Load())
		}
		if len(ev.all()) != 2 || ev.all()[0] != "Unhealthy: Readiness probe failed: out" {
			t.Errorf("events: %v", ev.all())
		}
		m.Sync(ctx, pod, []string{"127.0.0.1"}, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(times()) != 4 || m.Results("u") != nil && len(m.Results("u")) > 0 {
			t.Errorf("it went on: %v", times())
		}
		cancel()
		m.Wait()
	})
}

func TestStartupGatesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		ran := map[string]int{}
		ok := false
		n := func(cmd string) int {
			mu.Lock()
			defer mu.Unlock()
			return ran[cmd]
		}
		m := New(execsByCmd(func(cmd string) error {
			mu.Lock()
			defer mu.Unlock()
			ran[cmd]++
			if !ok {
				return utilexec.CodeExitError{Err: errors.New("x"), Code: 1}
			}
			return nil
		}), &noEvents{}, func(types.UID) {}, nil)
		probe := func(cmd string) *v1.Probe {
			return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{cmd}}}, PeriodSeconds: 1, FailureThreshold: 30}
		}
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", StartupProbe: probe("startup"), LivenessProbe: probe("live"), ReadinessProbe: probe("ready")}}}}
		pod.UID = "u"
		ctx, cancel := context.WithCancel(t.Context())
		sync := func(ending bool) {
			m.Sync(ctx, pod, []string{"127.0.0.1"}, []podplan.ProbeTarget{{ID: "id", Name: "c", Since: time.Now(), Ending: ending}})
		}
		sync(false)
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		if n("startup") != 4 || n("live")+n("ready") != 0 {
			t.Errorf("%v", m.Results("u"))
		}
		mu.Lock()
		ok = true
		mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		sync(false)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if s := m.Results("u")["id"].Started; s == nil || !*s || n("startup") != 5 || n("live") == 0 || n("ready") == 0 {
			t.Errorf("%v", m.Results("u"))
		}
		sync(true)
		synctest.Wait()
		live, ready := n("live"), n("ready")
		time.Sleep(4700 * time.Millisecond)
		synctest.Wait()
		if n("live") != live || n("ready") <= ready {
			t.Errorf("of an ending pod only readiness goes on: %v", m.Results("u"))
		}
		m.Remove("u")
		cancel()
		m.Wait()
	})
}

type execsByCmd func(string) error

func (f execsByCmd) ExecSync(_ context.Context, _ string, cmd []string, _ time.Duration) ([]byte, []byte, error) {
	return nil, nil, f(cmd[0])
}

// TestServersThatDoNotSpeakWell: a probe ends in time, whatever is on the other end.
func TestServersThatDoNotSpeakWell(t *testing.T) {
	for name, tc := range map[string]struct {
		says    string
		hold    bool // keeps the connection open
		verdict verdict
		text    string
	}{
		"hangs up":       {"", false, failure, "EOF"},
		"nonsense":       {"hello\r\n\r\n", false, failure, "malformed HTTP response"},
		"says nothing":   {"", true, failure, "context deadline exceeded"},
		"half a head":    {"HTTP/1.1 200 OK\r\nA: b", true, failure, "context deadline exceeded"},
		"no length":      {"HTTP/1.1 200 OK\r\n\r\nbody", false, success, "body"},
		"early hints":    {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true, success, "ok"},
		"keeps it open":  {"HTTP/1.1 204 No Content\r\n\r\n", true, success, ""},
		"an endless one": {"HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 20<<10), true, success, strings.Repeat("x", 100)},
		"no location":    {"HTTP/1.1 304 Not Modified\r\n\r\n", false, warning, "Probe terminated redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			over := make(chan struct{})
			var served sync.WaitGroup
			served.Go(func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Read(make([]byte, 4096))
				_, _ = c.Write([]byte(tc.says))
				if tc.hold {
					<-over
				}
				_ = c.Close()
			})
			host, port := address(t, "http://"+l.Addr().String())
			timeout := enough
			if strings.Contains(tc.text, "deadline") {
				timeout = short
			}
			a := newNetwork(dial).httpGet(t.Context(), &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt(port)}, nil, host, timeout)
			close(over)
			served.Wait()
			if a.verdict != tc.verdict || !strings.Contains(a.text, tc.text) {
				t.Errorf("%v %q", a.verdict, a.text)
			}
		})
	}
}

func TestRepetitionsMeetOnABeat(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, int(30*time.Millisecond), time.UTC)
	if d := nextDelay(time.Second, at); d != 1070*time.Millisecond {
		t.Errorf("first repetition after %v", d)
	}
	if d := nextDelay(time.Second, at.Add(70*time.Millisecond)); d != time.Second {
		t.Errorf("further ones after %v", d)
	}
}
