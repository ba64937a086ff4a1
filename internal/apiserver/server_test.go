package apiserver

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// start runs a server on a free port and in a folder of its own until the test ends.
func start(t testing.TB, change ...func(*Config)) *Server {
	t.Helper()
	s := startIn(t, t.TempDir(), change...)
	makeAccount(t, s) // no controller here creates it
	return s
}

// makeAccount makes the default account of the default namespace.
func makeAccount(t testing.TB, s *Server) {
	t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}}
	if _, err := admin(t, s).CoreV1().ServiceAccounts("default").Create(t.Context(), sa, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func startIn(t testing.TB, dir string, change ...func(*Config)) *Server {
	t.Helper()
	s, stop := run(t, dir, change...)
	t.Cleanup(stop)
	return s
}

// run starts a server. stop stops it and waits.
func run(t testing.TB, dir string, change ...func(*Config)) (s *Server, stop func()) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = dir, 0, net.IPv4(127, 0, 0, 1)
	for _, f := range change {
		f(&cfg)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s, err := New(ctx, cfg)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	select {
	case <-s.Ready():
	case err := <-done:
		cancel()
		t.Fatalf("Run ended early: %v", err)
	case <-time.After(3 * time.Minute): // informers wait up to a minute between two tries
		stop()
		t.Fatal("not ready after three minutes")
	}
	return s, stop
}

// admin returns an in-process client with all rights.
func admin(t testing.TB, s *Server) kubernetes.Interface {
	t.Helper()
	return clientFor(t, s.ClientConfig("admin", "system:masters"))
}

func clientFor(t testing.TB, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// overTCP returns a configuration for the same user over TLS.
func overTCP(cfg *rest.Config) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.WrapTransport = nil
	return c
}

func testPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox"}}},
	}
}

func TestPodLifeOverBothTransports(t *testing.T) {
	s := start(t)
	inProcess := s.ClientConfig("admin", "system:masters")
	for name, cfg := range map[string]*rest.Config{"in-process": inProcess, "tls": overTCP(inProcess)} {
		t.Run(name, func(t *testing.T) { podLife(t, clientFor(t, cfg), "pod-"+name) })
	}
}

func podLife(t *testing.T, c kubernetes.Interface, name string) {
	ctx := t.Context()
	pods := c.CoreV1().Pods("default")
	w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	created, err := pods.Create(ctx, testPod(name), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if created.UID == "" || created.Status.Phase != corev1.PodPending || created.Generation != 1 {
		t.Errorf("created pod: uid %q, phase %q, generation %d", created.UID, created.Status.Phase, created.Generation)
	}
	expect(t, w, watch.Added)

	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if bound := expect(t, w, watch.Modified); bound.Spec.NodeName != "n1" {
		t.Errorf("nodeName after binding: %q", bound.Spec.NodeName)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"a": "b"}}})
	if err != nil {
		t.Fatal(err)
	}
	patched, err := pods.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil || patched.Labels["a"] != "b" {
		t.Fatalf("patch: %v, labels %v", err, patched.Labels)
	}
	expect(t, w, watch.Modified)

	// A bound pod is first asked to stop, and is removed when the node says so.
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if p := expect(t, w, watch.Modified); p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 {
		t.Errorf("after delete: deletionTimestamp %v, grace %v", p.DeletionTimestamp, *p.DeletionGracePeriodSeconds)
	}
	if err := pods.Delete(ctx, name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	expect(t, w, watch.Modified) // the grace period is shortened to nothing
	expect(t, w, watch.Deleted)
	if _, err := pods.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v", err)
	}
}

// expect returns the pod of the next event, which must be of the wanted type.
func expect(t *testing.T, w watch.Interface, want watch.EventType) *corev1.Pod {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatalf("watch closed, want %s", want)
		}
		p, ok := e.Object.(*corev1.Pod)
		if !ok || e.Type != want {
			t.Fatalf("event %s %T, want %s", e.Type, e.Object, want)
		}
		return p
	case <-time.After(time.Minute):
		t.Fatalf("no %s event", want)
		return nil
	}
}

func TestFlagsWithoutEffectTakeTheirValueInEitherForm(t *testing.T) {
	for name := range noEffect.Ignored {
		forms := [][]string{{"--" + name, "true"}, {"--" + name + "=true"}}
		if slices.Contains(noEffect.Switches, name) {
			forms = [][]string{{"--" + name}, {"--" + name + "=true"}, {"--" + name + "=false"}}
		}
		for _, form := range forms {
			cfg := DefaultConfig()
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			cfg.AddFlags(fs)
			if err := fs.Parse(append(form, "--secure-port", "1234")); err != nil || fs.NArg() != 0 || cfg.SecurePort != 1234 {
				t.Errorf("%q: %v, left over %q, --secure-port %d", form, err, fs.Args(), cfg.SecurePort)
			}
		}
	}
}
