package hollow_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/hollow"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

// server is an API server without controllers or a scheduler.
type server struct {
	kubernetes.Interface
	t *testing.T
}

func startServer(t *testing.T) *server {
	t.Helper()
	cfg := apiserver.DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	s, err := apiserver.New(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s.Run)
	select {
	case <-s.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("not ready")
	}
	client, err := kubernetes.NewForConfig(s.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // without it no pod is admitted
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &server{client, t}
}

// run runs f until the test ends, or until stop is called.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func config(nodes int, change ...func(*hollow.Config)) hollow.Config {
	cfg := hollow.DefaultConfig()
	cfg.Nodes, cfg.Heartbeat = nodes, time.Second
	for _, f := range change {
		f(&cfg)
	}
	return cfg
}

// play runs a fleet, and returns once its nodes are ready.
func (s *server) play(nodes int, change ...func(*hollow.Config)) (stop func()) {
	s.t.Helper()
	f, err := hollow.New(config(nodes, change...), s)
	if err != nil {
		s.t.Fatal(err)
	}
	stop = run(s.t, f.Run)
	select {
	case <-f.Ready():
	case <-time.After(time.Minute):
		s.t.Fatal("the nodes are not ready")
	}
	return stop
}

// pod is bound to a node from the start.
func pod(name, node string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: new(false),
			Containers: []v1.Container{{Name: "main", Image: "example.com/main:1"}},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func annotated(key, value string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

func (s *server) create(p *v1.Pod) *v1.Pod {
	s.t.Helper()
	out, err := s.CoreV1().Pods("default").Create(s.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *server) node(name string) *v1.Node {
	s.t.Helper()
	n, err := s.CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// await returns a pod once it is as wanted; nil is a pod that is gone.
func (s *server) await(name, what string, ok func(*v1.Pod) bool) *v1.Pod {
	s.t.Helper()
	pods := s.CoreV1().Pods("default")
	return await(s.t, pods.Watch, func() (*v1.Pod, error) { return pods.Get(s.t.Context(), name, metav1.GetOptions{}) }, name, what, ok)
}

func (s *server) awaitNode(name, what string, ok func(*v1.Node) bool) {
	s.t.Helper()
	nodes := s.CoreV1().Nodes()
	await(s.t, nodes.Watch, func() (*v1.Node, error) { return nodes.Get(s.t.Context(), name, metav1.GetOptions{}) }, name, what, ok)
}

func await[T any, P interface {
	*T
	metav1.Object
}](t *testing.T, follow func(context.Context, metav1.ListOptions) (watch.Interface, error), get func() (P, error),
	name, what string, ok func(P) bool) P {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := follow(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	last, err := get() // a watch does not tell of what is gone already
	if err != nil {
		last = nil
	}
	for !ok(last) {
		e, more := <-w.ResultChan()
		if !more {
			t.Fatalf("%s is not %s; last %+v", name, what, last)
		}
		last, _ = e.Object.(P)
		if e.Type == watch.Deleted {
			last = nil
		}
	}
	return last
}

func ready(p *v1.Pod) bool {
	return p != nil && p.Status.Phase == v1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

func gone(p *v1.Pod) bool { return p == nil }

func phase(want v1.PodPhase) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { return p != nil && p.Status.Phase == want }
}

func nodeReady(n *v1.Node) bool {
	return n != nil && slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// renewed returns when a node last renewed its lease.
func (s *server) renewed(name string) time.Time {
	s.t.Helper()
	l, err := s.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return l.Spec.RenewTime.Time
}

// awaitLease returns once a node has renewed its lease after a time.
func (s *server) awaitLease(name string, after time.Time) {
	s.t.Helper()
	leases := s.CoordinationV1().Leases(v1.NamespaceNodeLease)
	w, err := leases.Watch(s.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Stop()
	for !s.renewed(name).After(after) {
		select {
		case <-w.ResultChan():
		case <-time.After(time.Minute):
			s.t.Fatalf("%s does not renew its lease", name)
		}
	}
}

// annotate sets an annotation of a node, or removes it ("").
func (s *server) annotate(node, key, value string) {
	s.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value)
	if value == "" {
		patch = fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, key)
	}
	if _, err := s.CoreV1().Nodes().Patch(s.t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}
