package policy

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/api/pods"
)

// fresh has no address in its status yet.
func fresh(p *v1.Pod) { p.Status = v1.PodStatus{Phase: v1.PodPending} }

func addressesBy(name string) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(podIP(name)), netip.MustParseAddr(podIP6(name))}
}

// TestNewPodIsNeverOpen: it was, from when it had its address until its status said so.
func TestNewPodIsNeverOpen(t *testing.T) {
	m := newMachine(t)
	api := fake.NewClientset(pod("a", fresh), pod("b"), pod("c", in("other")), policy("deny", on("a")))
	e, stop := m.enforce(api)
	defer stop()
	m.check(e.Admit(t.Context(), "s1", identityOf(pod("a")), addressesBy("a")))
	m.shut("b", "a")
	m.shut("c", "a")

	// The address goes to the next one, which nobody isolates.
	e.Forget("s1")
	m.check(e.Admit(t.Context(), "s2", identityOf(pod("b")), addressesBy("a")))
	m.eventually("c", "a", true)
}

// TestAdmitWaitsForWhatItHasToKnow: for nothing, unless policies of the namespace could select the pod.
func TestAdmitWaitsForWhatItHasToKnow(t *testing.T) {
	m := newMachine(t)
	static := pod("c", fresh, func(p *v1.Pod) { p.Annotations = map[string]string{pods.AnnotationConfigMirror: "hash"} })
	api := fake.NewClientset(pod("b", fresh), static, policy("deny", on("a")), policy("too", on("c")))
	e, stop := m.enforce(api)
	defer stop()
	m.check(e.Admit(t.Context(), "s1", identityOf(pod("b")), addressesBy("b")))              // not selected
	m.check(e.Admit(t.Context(), "s2", identityOf(pod("x", in("other"))), addressesBy("d"))) // no policy there
	m.check(e.Admit(t.Context(), "s3", Identity{"default", "c", "hash"}, addressesBy("c")))  // by its mirror
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := e.Admit(short, "s4", identityOf(pod("a")), addressesBy("a")); err == nil || !strings.Contains(err.Error(), "news of the pod from the API server") {
		t.Errorf("a pod that nobody knows: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- e.Admit(t.Context(), "s4", identityOf(pod("a")), addressesBy("a")) }()
	_, err := api.CoreV1().Pods("default").Create(t.Context(), pod("a", fresh), metav1.CreateOptions{})
	m.check(err)
	m.check(<-done)
	m.shut("b", "a")
}

// TestWhoHasAnAddress: what the runtime says counts before statuses.
func TestWhoHasAnAddress(t *testing.T) {
	f := facts(pod("a", born(1), fresh), pod("b", born(2), at("a")))
	f.Policies = append(f.Policies, policy("deny", on("a")))
	ip := netip.MustParseAddr(podIP("a"))
	if got := NewPlan(f).Owners[ip].Name; got != "b" {
		t.Errorf("by statuses it is %q's", got)
	}
	f.Known = map[Identity][]netip.Addr{identityOf(f.Pods[0]): {ip}}
	plan := NewPlan(f)
	if got := plan.Owners[ip].Name; got != "a" || plan.Isolated[ingress][ip] == "" {
		t.Errorf("it is %q's, %v", got, plan.Isolated)
	}
	f.Pods[0].UID = "another" // of the same name
	if got := NewPlan(f).Owners[ip].Name; got != "b" {
		t.Errorf("a pod of the same name has it: %q", got)
	}
}
