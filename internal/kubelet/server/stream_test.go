package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	remotecommandserver "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	utilexec "k8s.io/utils/exec"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/test/fakecri"
)

// echo is a runtime whose containers repeat what they are sent.
type echo struct {
	fakecri.Service
	streams streaming.Server
}

func (e *echo) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return e.streams.GetExec(r)
}

func (e *echo) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return e.streams.GetAttach(r)
}

func (e *echo) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return e.streams.GetPortForward(r)
}

// process is what runs in the containers of echo.
type process struct{}

func (process) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommandserver.TerminalSize) error {
	if cmd[0] == "false" {
		return utilexec.CodeExitError{Err: errors.New("command terminated with non-zero exit code"), Code: 7}
	}
	data, err := io.ReadAll(in) // ends only if the client can close stdin
	if err != nil {
		return err
	}
	if errOut != nil {
		fmt.Fprint(errOut, "to stderr")
	}
	_, err = fmt.Fprintf(out, "%s %v %s", id, cmd, data)
	return err
}

func (p process) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommandserver.TerminalSize) error {
	return p.Exec(ctx, id, []string{"attached"}, in, out, errOut, tty, resize)
}

func (process) PortForward(_ context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	if port == 81 {
		return errors.New("connection refused")
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(stream, buf); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%s:%d %s", id, port, buf)
	return err
}

// newStreams returns the address of a server in front of an echo runtime.
func newStreams(t *testing.T) *url.URL {
	t.Helper()
	f := newFixture(t)
	cfg := streaming.DefaultConfig
	cfg.Addr = "127.0.0.1:0"
	rt := &echo{Service: fakecri.Service{Runtime: f.rt}}
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.streams.ServeHTTP(w, r) }))
	base, err := url.Parse(back.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.BaseURL = base
	if rt.streams, err = streaming.NewServer(cfg, process{}); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(New(Config{Debugging: true}, f.pods, rt).mux)
	t.Cleanup(func() {
		front.Close()
		back.Close()
	})
	u, err := url.Parse(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// executors returns the ways kubectl connects: WebSocket v5, then SPDY.
func executors(t *testing.T, u *url.URL) map[string]remotecommand.Executor {
	t.Helper()
	cfg := &rest.Config{Host: u.Host}
	ws, err := remotecommand.NewWebSocketExecutor(cfg, "GET", u.String())
	if err != nil {
		t.Fatal(err)
	}
	sp, err := remotecommand.NewSPDYExecutor(cfg, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"websocket": ws, "spdy": sp}
}

func TestExecAndAttachByBothProtocols(t *testing.T) {
	base := newStreams(t)
	for path, want := range map[string]string{
		"/exec/ns/p/c?command=cat&command=-&input=1&output=1&error=1": "c1 [cat -] hello",
		"/attach/ns/p/u/c?input=1&output=1&error=1":                   "c1 [attached] hello",
	} {
		u, err := base.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		for name, ex := range executors(t, u) {
			var out, errOut bytes.Buffer
			err := ex.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: &errOut})
			if err != nil || out.String() != want || errOut.String() != "to stderr" {
				t.Errorf("%s by %s: %q %q %v", path, name, out.String(), errOut.String(), err)
			}
		}
	}
}

func TestExitCodeComesThrough(t *testing.T) {
	u, err := newStreams(t).Parse("/exec/ns/p/c?command=false&output=1")
	if err != nil {
		t.Fatal(err)
	}
	for name, ex := range executors(t, u) {
		var exit clientexec.CodeExitError
		err := ex.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		if !errors.As(err, &exit) || exit.Code != 7 {
			t.Errorf("by %s: %v", name, err)
		}
	}
}

// TestPortForwardByBothProtocols: several ports at once, one of which nobody listens on.
func TestPortForwardByBothProtocols(t *testing.T) {
	u, err := newStreams(t).Parse("/portForward/ns/p")
	if err != nil {
		t.Fatal(err)
	}
	cfg := &rest.Config{Host: u.Host}
	ws, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, cfg)
	if err != nil {
		t.Fatal(err)
	}
	tr, up, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]httpstream.Dialer{
		"websocket": ws, "spdy": spdy.NewDialerForStreaming(up, &http.Client{Transport: tr}, http.MethodPost, u),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := contextWithCancel(t)
			ready := make(chan struct{})
			fw, err := portforward.NewOnAddressesForStreamingWithContext(ctx, dialer, []string{"127.0.0.1"}, []string{"0:80", "0:8080", "0:81"}, ready, io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- fw.ForwardPorts() }()
			select {
			case <-ready:
			case err := <-done:
				t.Fatal(err)
			}
			forwarded, err := fw.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			var conns []net.Conn // all are open at once
			for range 2 {
				for _, p := range forwarded[:2] {
					conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Local))
					if err != nil {
						t.Fatal(err)
					}
					conns = append(conns, conn)
				}
			}
			for i, conn := range conns {
				if _, err := conn.Write([]byte("hello")); err != nil {
					t.Error(err)
				}
				want := fmt.Sprintf("sb:%d hello", forwarded[i%2].Remote)
				if got, err := io.ReadAll(conn); err != nil || string(got) != want {
					t.Errorf("%q, %v, want %q", got, err, want)
				}
				_ = conn.Close()
			}
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", forwarded[2].Local))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(conn); len(got) > 0 {
				t.Errorf("nobody answers, and %q, %v comes back", got, err)
			}
			_ = conn.Close()
			cancel()
			if err := <-done; err != nil && !errors.Is(err, portforward.ErrLostConnectionToPod) {
				t.Error(err)
			}
		})
	}
}

// beforeTheLook shows a pod as it is before its worker has first looked at it.
type beforeTheLook struct {
	*onePod
	asked bool
}

func (p *beforeTheLook) ByName(ns, name string) (podworker.Snapshot, bool) {
	s, ok := p.onePod.ByName(ns, name)
	if !p.asked {
		looked := make(chan struct{})
		close(looked)
		s.At, s.Input, s.Superseded = time.Time{}, podplan.Input{}, looked
	}
	p.asked = true
	return s, ok
}

// TestWhatRunsIsKnownAfterTheFirstLook: a kubelet that had just started used to say that running
// containers could not be found.
func TestWhatRunsIsKnownAfterTheFirstLook(t *testing.T) {
	f := newFixture(t)
	s := New(Config{Debugging: true, PodLogs: f.logs}, &beforeTheLook{onePod: f.pods}, fakecri.Service{Runtime: f.rt})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	for name, value := range map[string]string{"namespace": "ns", "pod": "p", "container": "c"} {
		r.SetPathValue(name, value)
	}
	w := httptest.NewRecorder()
	if _, id, ok := s.container(w, r); !ok || id != "c1" {
		t.Errorf("%q, %d: %s", id, w.Code, w.Body)
	}
}
