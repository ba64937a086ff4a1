package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// executor speaks SPDY, as API servers and kubelets do to a runtime.
func executor(t testing.TB, rawURL string) remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&restclient.Config{Host: u.Host}, http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// stream runs one exec with the given streams.
func (n *node) stream(req *runtimeapi.ExecRequest, o remotecommand.StreamOptions) error {
	n.t.Helper()
	resp, err := n.run.Exec(n.t.Context(), req)
	n.must(err)
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	return executor(n.t, resp.GetUrl()).StreamWithContext(ctx, o)
}

func TestExecStreams(t *testing.T) {
	p := newNode(t).pod()
	id := p.start(containerConfig("main", "sleep", "1000"))
	var out, errOut bytes.Buffer
	req := &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh", "-c", "cat; echo e >&2; exit 5"}, Stdin: true, Stdout: true, Stderr: true}
	err := p.stream(req, remotecommand.StreamOptions{Stdin: strings.NewReader("hello\n"), Stdout: &out, Stderr: &errOut})
	var exit utilexec.CodeExitError
	ok := errors.As(err, &exit)
	if !ok || exit.Code != 5 || out.String() != "hello\n" || errOut.String() != "e\n" {
		t.Errorf("out %q, err %q, %v", out.String(), errOut.String(), err)
	}
	req = &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"no-such-program"}, Stdout: true}
	if err := p.stream(req, remotecommand.StreamOptions{Stdout: io.Discard}); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("a missing program: %v", err)
	}
}

// sizes is a queue of terminal sizes.
type sizes chan *remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize { return <-s }

func TestExecTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		testExecTerminal(t, n.pod())
		if n.translates() {
			testExecTerminal(t, n.pod(withUserns))
		}
	})
}

func testExecTerminal(t *testing.T, p *pod) {
	id := p.start(containerConfig("main", "sleep", "1000"))
	queue := make(sizes, 1)
	queue <- &remotecommand.TerminalSize{Width: 123, Height: 45}
	in, typed := io.Pipe()
	out := newExpect()
	req := &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true}
	done := make(chan error, 1)
	go func() {
		done <- p.stream(req, remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: queue})
	}()
	typeLine := func(s string) {
		if _, err := io.WriteString(typed, s+"\n"); err != nil {
			t.Error(err)
		}
	}
	typeLine("tty; while [ \"$(stty size)\" != '45 123' ]; do sleep 0.02; done; echo size-is-right")
	out.wait(t, "/dev/pts/0")
	out.wait(t, "\nsize-is-right")
	typeLine("exit 3")
	if exit, ok := errors.AsType[utilexec.CodeExitError](<-done); !ok || exit.Code != 3 {
		t.Errorf("exit %v", exit)
	}
	close(queue)
	p.must(typed.Close())
}

// expect collects output and waits for text in it.
type expect struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

func newExpect() *expect { return &expect{more: make(chan struct{}, 1)} }

func (e *expect) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.more <- struct{}{}:
	default:
	}
	return e.buf.Write(p)
}

func (e *expect) text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.buf.String()
}

func (e *expect) wait(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for !strings.Contains(e.text(), want) {
		select {
		case <-e.more:
		case <-timeout:
			t.Fatalf("no %q in %q", want, e.text())
		}
	}
}

func TestAttach(t *testing.T) {
	p := newNode(t).pod()
	cfg := containerConfig("main", "sh", "-c", `while read line; do echo "got $line"; echo "e $line" >&2; done; exit 4`)
	cfg.Stdin, cfg.StdinOnce = true, true
	id := p.start(cfg)
	resp, err := p.run.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	p.must(err)
	in, typed := io.Pipe()
	out, errOut := newExpect(), newExpect()
	done := make(chan error, 1)
	go func() {
		done <- executor(t, resp.GetUrl()).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errOut})
	}()
	_, err = io.WriteString(typed, "one\n")
	p.must(err)
	out.wait(t, "got one\n")
	errOut.wait(t, "e one\n")
	p.must(typed.Close()) // stdinOnce: the container reads the end of file
	if st := p.waitExit(id); st.ExitCode != 4 {
		t.Errorf("exit %d", st.ExitCode)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Whoever attached to a container whose stdin stays open, and had said everything, stayed attached until the container ended
// (upstream's spec of `kubectl run --leave-stdin-open`).
func TestWhoHasSaidEverythingIsNoLongerAttached(t *testing.T) {
	p := newNode(t).pod()
	cfg := containerConfig("main", "sh", "-c", `while read line; do echo "got $line"; done; exit 4`)
	cfg.Stdin = true
	id := p.start(cfg)
	for _, word := range []string{"one", "two"} {
		resp, err := p.run.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
		p.must(err)
		out := newExpect()
		err = executor(t, resp.GetUrl()).StreamWithContext(t.Context(),
			remotecommand.StreamOptions{Stdin: strings.NewReader(word + "\n"), Stdout: out, Stderr: newExpect()})
		if err != nil || out.text() != "got "+word+"\n" {
			t.Errorf("%s: %q, %v", word, out.text(), err)
		}
	}
	if st, err := p.run.ContainerStatus(t.Context(), id, false); err != nil || st.Status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("its stdin was to stay open: %v, %v", st, err)
	}
}

func TestAttachToATerminal(t *testing.T) {
	p := newNode(t).pod()
	cfg := containerConfig("main", "sh")
	cfg.Stdin, cfg.Tty = true, true
	id := p.start(cfg)
	resp, err := p.run.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Tty: true})
	p.must(err)
	in, typed := io.Pipe()
	out := newExpect()
	queue := make(sizes, 1)
	queue <- &remotecommand.TerminalSize{Width: 77, Height: 33}
	done := make(chan error, 1)
	go func() {
		done <- executor(t, resp.GetUrl()).StreamWithContext(t.Context(),
			remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: queue})
	}()
	_, err = io.WriteString(typed, "while [ \"$(stty size)\" != '33 77' ]; do sleep 0.02; done; echo size-is-right; exit 6\n")
	p.must(err)
	out.wait(t, "\nsize-is-right")
	if st := p.waitExit(id); st.ExitCode != 6 {
		t.Errorf("exit %d", st.ExitCode)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	close(queue)
	p.must(typed.Close())
}

func TestPortForward(t *testing.T) {
	p := newNode(t).pod()
	server := p.sh("main", `while :; do echo "hello from $(hostname)" | nc -l -p 8080; done`)
	p.exec(server, "sh", "-c", "until netstat -ltn | grep -q :8080; do sleep 0.02; done")
	id := p.id
	resp, err := p.run.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: id, Port: []int32{8080}})
	p.must(err)
	u, err := url.Parse(resp.GetUrl())
	p.must(err)
	transport, upgrader, err := spdy.RoundTripperFor(&restclient.Config{Host: u.Host})
	p.must(err)
	var dialer = spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	stop, ready := make(chan struct{}), make(chan struct{})
	fw, err := portforward.New(dialer, []string{"0:8080"}, stop, ready, io.Discard, os.Stderr)
	p.must(err)
	done := make(chan error, 1)
	go func() { done <- fw.ForwardPorts() }()
	<-ready
	ports, err := fw.GetPorts()
	p.must(err)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	p.must(err)
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "hello from "+p.cfg.Hostname+"\n" {
		t.Errorf("%q, %v", got, err)
	}
	p.must(conn.Close())
	close(stop)
	p.must(<-done)
}
