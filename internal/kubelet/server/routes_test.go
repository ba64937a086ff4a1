package server

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/component-base/metrics/testutil"

	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/test/fakecri"
)

// answer returns a handler's response to a request.
func answer(t *testing.T, h http.Handler, method, path, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func TestHealthz(t *testing.T) {
	f := newFixture(t)
	s := New(Config{Healthy: func() error { return io.ErrUnexpectedEOF }}, f.pods, fakecri.Service{Runtime: f.rt})
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/healthz":                            {500, "[+]ping ok\n[+]log ok\n[-]syncloop failed: unexpected EOF\nhealthz check failed\n"},
		"/healthz/syncloop":                   {500, "internal server error: unexpected EOF\n"},
		"/healthz/ping":                       {200, "ok"},
		"/healthz/log":                        {200, "ok"},
		"/healthz?exclude=syncloop":           {200, "ok"},
		"/healthz?exclude=syncloop&verbose=1": {200, "[+]ping ok\n[+]log ok\n[+]syncloop excluded: ok\nhealthz check passed\n"},
		"/healthz/none":                       {404, "404 page not found\n"},
	} {
		if code, body := answer(t, s.mux, "GET", path, ""); code != want.code || body != want.text {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

func TestWhatIsSwitchedOffSaysSo(t *testing.T) {
	f := newFixture(t)
	rt := fakecri.Service{Runtime: f.rt}
	none := New(Config{}, f.pods, rt)
	for _, path := range []string{"/exec/ns/p/c", "/run/ns/p/c", "/attach/ns/p/c", "/portForward/ns/p", "/containerLogs/ns/p/c", "/runningpods/", "/debug/pprof/", "/logs/"} {
		if code, body := answer(t, none.mux, "GET", path, ""); code != 405 || body != "Debug endpoints are disabled.\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, _ := answer(t, none.mux, "GET", "/configz", ""); code != 404 {
		t.Errorf("/configz: %d", code)
	}
	some := New(Config{Debugging: true}, f.pods, rt)
	for path, want := range map[string]string{
		"/logs/": "logs endpoint is disabled.\n", "/debug/flags/v": "flags endpoint is disabled.\n", "/debug/pprof/heap": "profiling endpoint is disabled.\n",
	} {
		if code, body := answer(t, some.mux, "GET", path, ""); code != 405 || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	for path, method := range map[string]string{
		"/pods": "POST", "/stats/summary": "DELETE", "/run/ns/p/c": "GET", "/exec/ns/p/c": "PUT", "/checkpoint/ns/p/c": "GET", "/containerLogs/ns/p/c": "POST",
	} {
		if code, _ := answer(t, New(Config{Debugging: true, Stats: &Stats{}}, f.pods, rt).mux, method, path, ""); code != 405 {
			t.Errorf("%s %s: %d", method, path, code)
		}
	}
}

func TestLogVerbosityCanBeSet(t *testing.T) {
	f := newFixture(t)
	s := New(Config{Debugging: true, DebugFlags: true}, f.pods, fakecri.Service{Runtime: f.rt})
	if code, body := answer(t, s.mux, "PUT", "/debug/flags/v", "0"); code != 200 || !strings.Contains(body, "successfully set") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := answer(t, s.mux, "PUT", "/debug/flags/v", "x"); code != 400 {
		t.Errorf("%d", code)
	}
}

func TestReadOnlyPortOnlyInforms(t *testing.T) {
	metrics.Register()
	f := newFixture(t)
	s := New(Config{Debugging: true, Stats: &Stats{Runtime: f.rt, Pods: f.pods}}, f.pods, fakecri.Service{Runtime: f.rt})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextWithCancel(t)
	done := make(chan error, 1)
	go func() { done <- s.ServeReadOnly(ctx, l) }()
	tr := &http.Transport{DisableKeepAlives: true}
	get := func(path string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for path, code := range map[string]int{
		"/pods": 200, "/stats/summary": 200, "/metrics": 200, "/healthz": 200, "/configz": 404, "/containerLogs/ns/p/c": 405, "/debug/pods/u": 404,
	} {
		if got := get(path); got != code {
			t.Errorf("%s: %d, want %d", path, got, code)
		}
	}
	n, err := testutil.GetCounterMetricValue(metrics.HTTPRequests.WithLabelValues("GET", "stats", "readonly", "false"))
	if err != nil || n < 1 {
		t.Errorf("requests are not counted: %v, %v", n, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNodeLogs(t *testing.T) {
	dir := t.TempDir()
	bin := t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(dir, "web.log"): "from web.log\n", filepath.Join(dir, "db", "db.log"): "from db\n",
		// stands in for the journal: it knows one unit
		filepath.Join(bin, "journalctl"): "#!/bin/sh\nif [ \"$1\" = --field ]; then echo sshd.service; else echo \"$@\"; fi\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	f := newFixture(t)
	s := New(Config{Debugging: true, SystemLogs: dir, LogQuery: true}, f.pods, fakecri.Service{Runtime: f.rt})
	journal := "--utc --no-pager --output=short-precise "
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/logs/web.log":                   {200, "from web.log\n"},
		"/logs/":                          {200, `<a href="db/">db/</a>`},
		"/logs/none.log":                  {404, "not found"},
		"/logs/?query=web":                {200, "from web.log\n"},
		"/logs/?query=db":                 {200, "from db\n"},
		"/logs/?query=/web.log":           {200, "from web.log\n"},
		"/logs/?query=none":               {200, "log not found for none"},
		"/logs/?query=web&tailLines=1":    {200, "options present and query resolved to log files for [web]"},
		"/logs/?query=sshd":               {200, journal + "--unit=sshd\n"},
		"/logs/?query=sshd&tailLines=5":   {200, journal + "--pager-end --lines=5 --unit=sshd\n"},
		"/logs/?query=sshd&pattern=a.b":   {200, journal + "--unit=sshd --grep=a.b\n"},
		"/logs/?query=sshd&boot=-1":       {200, journal + "--unit=sshd --boot -1\n"},
		"/logs/?query=+":                  {400, "query cannot be empty"},
		"/logs/?query=sshd&sinceTime=x":   {400, "sinceTime: Invalid value: \"x\": invalid time format"},
		"/logs/?query=sshd&boot=x":        {400, "boot: Invalid value"},
		"/logs/?query=sshd&boot=1":        {406, "boot: Invalid value: 1: must be less than 1"},
		"/logs/?query=sshd&tailLines=-1":  {406, "tailLines: Invalid value: -1"},
		"/logs/?query=sshd&pattern=(":     {406, "pattern: Invalid value"},
		"/logs/?query=--file%3Dx":         {406, "input contains unsupported characters"},
		"/logs/?query=/../../etc/passwd":  {406, "query: Invalid value"},
		"/logs/?query=/web.log&query=web": {406, "cannot specify a file and service"},
		"/logs/?tailLines=1":              {406, "query: Required value: cannot be empty with options"},
		"/logs/?query=sshd&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-01T00:00:00Z": {406, "must be after `sinceTime`"},
		"/logs/?query=sshd&sinceTime=2026-01-02T03:04:05Z":                                {200, "--since=2026-01-02 03:04:05 --unit=sshd\n"},
	} {
		if code, body := answer(t, s.mux, "GET", path, ""); code != want.code || !strings.Contains(body, want.text) {
			t.Errorf("%s: %d %q, want %d %q", path, code, body, want.code, want.text)
		}
	}
	plain := New(Config{Debugging: true, SystemLogs: dir}, f.pods, fakecri.Service{Runtime: f.rt})
	if code, body := answer(t, plain.mux, "GET", "/logs/web.log?query=sshd", ""); code != 200 || body != "from web.log\n" {
		t.Errorf("%d %q", code, body)
	}
}

// TestNodeLogsShowNoFileElsewhere: a pod that collects logs may write to their directory. A link
// that it made used to show every file of the host, and a pipe used to block its reader for ever.
func TestNodeLogsShowNoFileElsewhere(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "shadow")
	for _, err := range []error{
		os.WriteFile(outside, []byte("root's"), 0o600), os.WriteFile(filepath.Join(dir, "a.log"), []byte("a log"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "shadow.log")), os.Symlink("/", filepath.Join(dir, "host")),
		os.Symlink(filepath.Join(dir, "a.log"), filepath.Join(dir, "b.log")), unix.Mkfifo(filepath.Join(dir, "pipe.log"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f := newFixture(t)
	s := New(Config{Debugging: true, SystemLogs: dir, LogQuery: true}, f.pods, fakecri.Service{Runtime: f.rt})
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/logs/b.log":               {200, "a log"}, // as /var/log/containers has them
		"/logs/?query=b":            {200, "a log"},
		"/logs/shadow.log":          {403, "Forbidden"},
		"/logs/host/":               {403, "Forbidden"},
		"/logs/host" + outside:      {403, "Forbidden"},
		"/logs/pipe.log":            {403, "Forbidden"},
		"/logs/?query=shadow":       {200, "the path leads out of the folder"},
		"/logs/?query=pipe":         {200, "is not a regular file"},
		"/logs/?query=/shadow.log":  {406, "the path leads out of the folder"},
		"/logs/?query=/pipe.log":    {406, "is not a regular file"},
		"/logs/?query=/host/../a.l": {406, "no such file"},
	} {
		if code, body := answer(t, s.mux, "GET", path, ""); code != want.code || !strings.Contains(body, want.text) || strings.Contains(body, "root's") {
			t.Errorf("%s: %d %q, want %d %q", path, code, body, want.code, want.text)
		}
	}
}

func TestPortsOfAWebSocket(t *testing.T) {
	for _, bad := range [][]string{nil, {""}, {"x"}, {"0"}, {"70000"}, {"80,"}} {
		if p, err := ports(bad); err == nil {
			t.Errorf("%q became %v", bad, p)
		}
	}
	if p, err := ports([]string{"80,443", "1"}); err != nil || len(p) != 3 || p[1] != 443 {
		t.Errorf("%v, %v", p, err)
	}
}

func FuzzLogQuery(f *testing.F) {
	for _, q := range []string{"query=a&boot=-1", "query=/x&query=b", "pattern=(&tailLines=9999999"} {
		f.Add(q)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawQuery = raw
		q, errs := parseLogQuery(r.URL.Query())
		if q == nil || len(errs) > 0 || len(q.validate(dir)) > 0 {
			return
		}
		for _, a := range q.journalArgs(q.services) {
			if !strings.HasPrefix(a, "--") && q.boot == nil {
				t.Errorf("%q gives journalctl the argument %q", raw, a)
			}
		}
	})
}

// TestSubresourceOfEachPath covers KEP-2862, and the subresources that existed before.
func TestSubresourceOfEachPath(t *testing.T) {
	for path, want := range map[string]string{
		"/pods": "pods proxy", "/pods/": "pods proxy", "/runningpods/": "pods proxy", "/podsx": "proxy",
		"/healthz": "healthz proxy", "/healthz/syncloop": "healthz proxy", "/configz": "configz proxy", "/configzx": "proxy",
		"/stats/summary": "stats", "/metrics": "metrics", "/metrics/cadvisor": "metrics", "/metrics/probes": "metrics", "/metrics/resource": "metrics",
		"/logs/": "log", "/logs/syslog": "log", "/checkpoint/ns/p/c": "checkpoint", "/statusz": "statusz", "/flagz": "configz",
		"/exec/ns/p/c": "proxy", "/attach/ns/p/c": "proxy", "/portForward/ns/p": "proxy", "/run/ns/p/c": "proxy", "/containerLogs/ns/p/c": "proxy",
		"/debug/pprof/heap": "proxy", "/debug/flags/v": "proxy", "/debug/pods": "proxy", "/": "proxy",
	} {
		if got := strings.Join(subresources(path), " "); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	for method, want := range map[string]string{"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "OPTIONS": "", "TRACE": ""} {
		if got := verb(method); got != want {
			t.Errorf("%s: %s", method, got)
		}
	}
}

func TestWhatTheProcessIs(t *testing.T) {
	f := newFixture(t)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.String("node-ip", "192.0.2.1", "")
	flags.String("manifest-url-header", "Authorization:secret", "")
	if err := flags.SetAnnotation("manifest-url-header", "classified", []string{"true"}); err != nil {
		t.Fatal(err)
	}
	s := New(Config{Debugging: true, Flags: flags}, f.pods, fakecri.Service{Runtime: f.rt})
	code, body := answer(t, s.mux, "GET", "/statusz", "")
	// The separator between a name and its value is random, so that nobody parses it.
	for _, want := range []string{"kubelet statusz", "Started", "Up", "Go version.*go1\\.", "Binary version.*1\\.", "/configz\\s/flagz\\s/healthz\\s/metrics"} {
		if code != 200 || !regexp.MustCompile(want).MatchString(body) {
			t.Errorf("/statusz has no %q: %d\n%s", want, code, body)
		}
	}
	code, body = answer(t, s.mux, "GET", "/flagz", "")
	if code != 200 || !strings.Contains(body, "kubelet flagz") || !regexp.MustCompile(`node-ip.*192\.0\.2\.1`).MatchString(body) || strings.Contains(body, "secret") {
		t.Errorf("/flagz: %d\n%s", code, body)
	}
	if code, _ := answer(t, New(Config{Debugging: true}, f.pods, fakecri.Service{Runtime: f.rt}).mux, "GET", "/flagz", ""); code != 404 {
		t.Errorf("/flagz of a kubelet that was started without flags: %d", code)
	}
	if code, _ := answer(t, New(Config{}, f.pods, fakecri.Service{Runtime: f.rt}).mux, "GET", "/statusz", ""); code != 404 {
		t.Errorf("/statusz without debugging handlers: %d", code)
	}
}
