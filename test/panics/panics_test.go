package panics

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

type tests func()

func (f tests) Run() int { f(); return 0 }

// ask makes the handler serve one request, as a test would.
func ask(t *testing.T, h http.HandlerFunc) tests {
	return func() {
		srv := httptest.NewServer(h)
		defer srv.Close()
		resp, err := srv.Client().Get(srv.URL) //nolint:noctx // the server is closed
		if err == nil {
			err = resp.Body.Close()
		}
		t.Logf("the client sees: %v", err)
	}
}

func TestARecoveredPanicFailsTheTests(t *testing.T) {
	for name, tc := range map[string]struct {
		h    http.HandlerFunc
		want int
	}{
		"none":        {func(http.ResponseWriter, *http.Request) {}, 0},
		"of net/http": {func(http.ResponseWriter, *http.Request) { panic("x") }, 1},
		"of the API server": {func(w http.ResponseWriter, _ *http.Request) {
			defer func() { _ = recover() }()
			defer utilruntime.HandleCrash()
			panic("x")
		}, 1},
		"broken off": {func(http.ResponseWriter, *http.Request) {
			defer utilruntime.HandleCrash()
			panic(http.ErrAbortHandler)
		}, 0},
	} {
		if got := Watch(ask(t, tc.h)).Run(); got != tc.want {
			t.Errorf("panic %s: exit code %d, want %d", name, got, tc.want)
		}
	}
}

func TestPanicsInALog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wherry.log")
	if err := None(path); err != nil {
		t.Errorf("no log: %v", err)
	}
	const told = `E1122 06:43:51.000000  1 panic.go:262] "Observed a panic" panic="x"`
	for file, text := range map[string]string{
		path:        "I1122 a pod named panic\n" + told + "\n",
		path + ".1": "panic: unfinished",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := path + " tells of a panic: " + told + "\n" + path + ".1 tells of a panic: panic: unfinished"
	if err := None(path + "*"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
