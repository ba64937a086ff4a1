package policy

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/netns"
)

// run runs an enforcer on a machine, with a fake API server, until the test ends or stop is called.
func (m *machine) run(api *fake.Clientset) (stop func()) {
	m.t.Helper()
	_, stop = m.enforce(api)
	return stop
}

func (m *machine) enforce(api *fake.Clientset) (e *Enforcer, stop func()) {
	m.t.Helper()
	f := informers.NewSharedInformerFactory(api, 0)
	e, err := New(Config{Node: "n", Table: m.kernel.table, Bridge: m.kernel.bridge, ShowBridged: func(context.Context, string) error { return nil }}, f)
	m.check(err)
	ctx, cancel := context.WithCancel(m.t.Context())
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- netns.Do(func() error { return e.Run(ctx) }, m.spaces["host"]) }()
	<-e.Ready()
	return e, func() {
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
		f.Shutdown()
	}
}

// eventually waits until a asks b, or does not get an answer any more.
func (m *machine) eventually(from, to string, open bool) {
	m.t.Helper()
	want, deadline := "silence", time.Now().Add(ample)
	if open {
		want = to
	}
	for m.ask(from, "tcp", podIP(to)+":80", silence) != want {
		if time.Now().After(deadline) {
			m.t.Fatalf("%s to %s: not %s", from, to, want)
		}
	}
}

func TestEnforcer(t *testing.T) {
	m := newMachine(t)
	ctx := t.Context()
	api := fake.NewClientset(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, pod("a", fresh), pod("b"),
		pod("c", func(p *v1.Pod) { p.Namespace = "other" }), policy("deny", on("a"), from(team("y"))))
	stop := m.run(api)
	m.open("b", "a") // nobody knows its address yet

	_, err := api.CoreV1().Pods("default").UpdateStatus(ctx, pod("a"), metav1.UpdateOptions{})
	m.check(err)
	m.eventually("b", "a", false)
	m.shut("c", "a")

	other := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "y"}}}
	_, err = api.CoreV1().Namespaces().Create(ctx, other, metav1.CreateOptions{})
	m.check(err)
	m.eventually("c", "a", true)
	delete(other.Labels, "team")
	_, err = api.CoreV1().Namespaces().Update(ctx, other, metav1.UpdateOptions{})
	m.check(err)
	m.eventually("c", "a", false)

	stop()
	m.shut("b", "a") // the table stays
	m.check(api.CoreV1().Pods("other").Delete(ctx, "c", metav1.DeleteOptions{}))
	stop = m.run(api)
	m.shut("b", "a")
	m.check(api.NetworkingV1().NetworkPolicies("default").Delete(ctx, "deny", metav1.DeleteOptions{}))
	m.eventually("b", "a", true)
	stop()
}

// Somebody else's hand in the table: the next change finds it broken, and mends all of it.
func TestTableThatSomebodyRemoved(t *testing.T) {
	m := newMachine(t)
	api := fake.NewClientset(pod("a"), pod("b"), policy("deny", on("a")))
	stop := m.run(api)
	defer stop()
	m.shut("b", "a")
	m.in("host", "nft delete table inet "+m.kernel.table)
	m.open("b", "a")
	_, err := api.NetworkingV1().NetworkPolicies("default").Create(t.Context(), policy("more", on("b")), metav1.CreateOptions{})
	m.check(err)
	m.eventually("b", "a", false)
	m.eventually("a", "b", false)
}

func TestWhatAnUpdateChanges(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1.Pod)
		same   bool
	}{
		"conditions": {func(p *v1.Pod) { p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady}} }, true},
		"running":    {func(p *v1.Pod) { p.Status.Phase = v1.PodPending }, true},
		"ended":      {ended, false},
		"address":    {func(p *v1.Pod) { p.Status.PodIPs = nil }, false},
		"labels":     {func(p *v1.Pod) { p.Labels = nil }, false},
		"node":       {elsewhere, false},
		"replaced":   {func(p *v1.Pod) { p.UID = types.UID("new") }, false},
	} {
		if got := samePod(pod("a"), pod("a", c.change)); got != c.same {
			t.Errorf("%s: %v", name, got)
		}
	}
	if samePolicy(policy("x"), policy("x", isolates(networkingv1.PolicyTypeEgress))) {
		t.Error("a policy that is different is the same")
	}
}
