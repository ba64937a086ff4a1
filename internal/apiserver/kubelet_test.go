package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	kubeletportforward "k8s.io/cri-streaming/pkg/streaming/portforward"
	kubeletexec "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilsexec "k8s.io/utils/exec"

	"wherry.dev/internal/pki"
)

// fakeKubelet answers the API server as a kubelet does, and refuses everybody else.
type fakeKubelet struct{}

const streamTimeout = time.Minute

func (k fakeKubelet) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if len(req.TLS.VerifiedChains) == 0 {
		http.Error(w, "no client certificate", http.StatusUnauthorized)
		return
	}
	q := req.URL.Query()
	opts := &kubeletexec.Options{Stdin: q.Get("input") == "1", Stdout: q.Get("output") == "1", Stderr: q.Get("error") == "1", TTY: q.Get("tty") == "1"}
	protocols := kubeletexec.SupportedStreamingProtocols
	switch path := strings.Split(req.URL.Path, "/"); path[1] {
	case "containerLogs":
		fmt.Fprintf(w, "log of %s, tail %s, follow %s\n", strings.Join(path[2:], "/"), q.Get("tailLines"), q.Get("follow"))
	case "metrics":
		exposeUsage(w)
	case "exec":
		kubeletexec.ServeExec(w, req, k, path[3], "", path[4], q["command"], opts, streamTimeout, streamTimeout, protocols)
	case "attach":
		kubeletexec.ServeAttach(w, req, k, path[3], "", path[4], opts, streamTimeout, streamTimeout, protocols)
	case "portForward":
		kubeletportforward.ServePortForward(w, req, k, path[3], "", &kubeletportforward.V4Options{}, streamTimeout, streamTimeout, []string{"portforward.k8s.io"})
	default:
		fmt.Fprintf(w, "%s %s", req.Method, req.URL.Path)
	}
}

// ExecInContainer echoes its input, and exits with 3 if there is none.
func (fakeKubelet) ExecInContainer(_ context.Context, _, _, container string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan kubeletexec.TerminalSize, _ time.Duration) error {
	fmt.Fprintf(errOut, "%s in %s", strings.Join(cmd, " "), container)
	n, err := io.Copy(out, in)
	if err == nil && n == 0 {
		return utilsexec.CodeExitError{Err: errors.New("nothing to say"), Code: 3}
	}
	return err
}

// AttachContainer echoes.
func (fakeKubelet) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan kubeletexec.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

// PortForward answers a line with the port and that line.
func (fakeKubelet) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer func() { _ = stream.Close() }()
	line := make([]byte, len("ping"))
	if _, err := io.ReadFull(stream, line); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%d %s", port, line)
	return err
}

// withKubelet runs a kubelet for the node n1, on which the pod p runs.
func withKubelet(t *testing.T, s *Server) (port int32) {
	t.Helper()
	cert, key, err := s.CA().Issue(t.TempDir(), "kubelet", pki.Leaf{CommonName: "system:node:n1", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := s.CA().Cert()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	server := httptest.NewUnstartedServer(fakeKubelet{})
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)

	port = int32(server.Listener.Addr().(*net.TCPAddr).Port)
	ctx, c := t.Context(), admin(t, s)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port}},
	}}
	if _, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := testPod("p")
	pod.Spec.NodeName = "n1"
	if _, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return port
}

func TestLogsComeFromTheKubelet(t *testing.T) {
	s := start(t)
	withKubelet(t, s)
	inProcess := s.ClientConfig("admin", "system:masters")
	for name, cfg := range map[string]*rest.Config{"in-process": inProcess, "tls": overTCP(inProcess)} {
		pods := clientFor(t, cfg).CoreV1().Pods("default")
		got, err := pods.GetLogs("p", &corev1.PodLogOptions{TailLines: new(int64(5)), Follow: true}).DoRaw(t.Context())
		if want := "log of default/p/c, tail 5, follow true\n"; err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
		_, err = pods.GetLogs("p", &corev1.PodLogOptions{Container: "other"}).Stream(t.Context())
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "container other is not valid for pod p") {
			t.Errorf("%s: log of another container: %v", name, err)
		}
	}
}

func TestProxyLeadsToNodes(t *testing.T) {
	s := start(t)
	port := withKubelet(t, s)
	ask := func(name string) (string, error) {
		got, err := admin(t, s).CoreV1().RESTClient().Get().Resource("nodes").Name(name).SubResource("proxy").Suffix("healthz").DoRaw(t.Context())
		return string(got), err
	}
	for _, name := range []string{"n1", fmt.Sprintf("n1:%d", port), fmt.Sprintf("https:n1:%d", port)} {
		if got, err := ask(name); err != nil || got != "GET /healthz" {
			t.Errorf("nodes/%s/proxy: %q, %v", name, got, err)
		}
	}
	if got, err := ask("n1:1"); !apierrors.IsBadRequest(err) || !strings.Contains(got, "address not allowed") {
		t.Errorf("another port on loopback: %q, %v", got, err)
	}
}

// The node has an address at which nobody answers; whether it is tried is a matter of the order.
func TestKubeletsAreReachedAtThePreferredAddress(t *testing.T) {
	for order, want := range map[string]string{"ExternalIP,InternalIP": "dial tcp 127.0.0.2:", "InternalIP,ExternalIP": "log of default/p/c"} {
		s := start(t, func(c *Config) { given(t, c, "--kubelet-preferred-address-types="+order) })
		withKubelet(t, s)
		c := admin(t, s).CoreV1()
		n, err := c.Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "127.0.0.2"})
		if _, err := c.Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		// The server may learn of the address a little later.
		eventually(t, func() error {
			got, err := c.Pods("default").GetLogs("p", &corev1.PodLogOptions{}).DoRaw(t.Context())
			if !strings.Contains(string(got), want) { // an error of the server is in its answer
				return fmt.Errorf("%s: %q, %w", order, got, err)
			}
			return nil
		})
	}
}

type makeExecutor func(cfg *rest.Config, c kubernetes.Interface, sub string, opts *corev1.PodExecOptions) (remotecommand.Executor, error)

func streamRequest(c kubernetes.Interface, sub string, opts *corev1.PodExecOptions) *rest.Request {
	return c.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource(sub).VersionedParams(opts, clientscheme.ParameterCodec)
}

var executors = map[string]makeExecutor{
	"spdy": func(cfg *rest.Config, c kubernetes.Interface, sub string, opts *corev1.PodExecOptions) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(cfg, "POST", streamRequest(c, sub, opts).URL())
	},
	"websocket": func(cfg *rest.Config, c kubernetes.Interface, sub string, opts *corev1.PodExecOptions) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(cfg, "GET", streamRequest(c, sub, opts).URL().String())
	},
}

func TestExecAndAttachOverBothProtocols(t *testing.T) {
	s := start(t)
	withKubelet(t, s)
	inProcess := s.ClientConfig("admin", "system:masters")
	for transport, cfg := range map[string]*rest.Config{"in-process": inProcess, "tls": overTCP(inProcess)} {
		c := clientFor(t, cfg)
		for protocol, make := range executors {
			t.Run(transport+" "+protocol, func(t *testing.T) { streams(t, cfg, c, make) })
		}
	}
}

func streams(t *testing.T, cfg *rest.Config, c kubernetes.Interface, make makeExecutor) {
	ctx, cancel := context.WithTimeout(t.Context(), streamTimeout)
	defer cancel()
	opts := &corev1.PodExecOptions{Command: []string{"cat", "-n"}, Stdin: true, Stdout: true, Stderr: true}
	run := func(sub, input string) (string, string, error) {
		e, err := make(cfg, c, sub, opts)
		if err != nil {
			t.Fatal(err)
		}
		var out, errOut bytes.Buffer
		err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errOut})
		return out.String(), errOut.String(), err
	}
	if out, errOut, err := run("exec", "hello"); err != nil || out != "hello" || errOut != "cat -n in c" {
		t.Errorf("exec: %q, %q, %v", out, errOut, err)
	}
	if _, _, err := run("exec", ""); !isExit(err, 3) {
		t.Errorf("exec that fails with 3: %v", err)
	}
	if out, _, err := run("attach", "hello"); err != nil || out != "hello" {
		t.Errorf("attach: %q, %v", out, err)
	}
}

func isExit(err error, code int) bool {
	exit, ok := errors.AsType[utilexec.CodeExitError](err)
	return ok && exit.Code == code
}

func TestPortForwardOverBothProtocols(t *testing.T) {
	s := start(t)
	withKubelet(t, s)
	cfg := s.ClientConfig("admin", "system:masters")
	target := admin(t, s).CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]httpstream.Dialer{
		"spdy":      spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", target),
		"websocket": tunnel,
	} {
		t.Run(name, func(t *testing.T) { forwards(t, dialer) })
	}
}

func forwards(t *testing.T, dialer httpstream.Dialer) {
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	defer func() {
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("ForwardPorts: %v", err)
		}
	}()
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("not ready: %v", err)
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "ping"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, len("8080 ping"))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "8080 ping" {
		t.Errorf("answer %q, %v", answer, err)
	}
}

func TestExecTakesTheRightToCreate(t *testing.T) {
	s := start(t)
	withKubelet(t, s)
	cfg := s.ClientConfig("reader")
	grant(t, s, "reader", "get", "pods", "pods/exec")
	for protocol, make := range executors {
		e, err := make(cfg, clientFor(t, cfg), "exec", &corev1.PodExecOptions{Command: []string{"id"}, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		if err == nil || !strings.Contains(err.Error(), "orbidden") {
			t.Errorf("%s: exec by a user who may only get: %v", protocol, err)
		}
	}
}
