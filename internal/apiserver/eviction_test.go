package apiserver

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientset "k8s.io/client-go/kubernetes"
)

// guarded is a namespace with running pods and budgets.
type guarded struct {
	t   *testing.T
	api clientset.Interface
}

// run creates a pod that runs, and is ready or not.
func (g guarded) run(name string, ready bool) {
	g.t.Helper()
	p := testPod(name)
	p.Labels = map[string]string{"app": "w"}
	p.Spec.NodeName = "n1"
	pods := g.api.CoreV1().Pods("default")
	p, err := pods.Create(g.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	p.Status.Phase = corev1.PodRunning
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if _, err := pods.UpdateStatus(g.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		g.t.Fatal(err)
	}
}

// budget creates a budget that allows so many disruptions.
func (g guarded) budget(name string, allowed int32) {
	g.t.Helper()
	api := g.api.PolicyV1().PodDisruptionBudgets("default")
	b, err := api.Create(g.t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "w"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, DisruptionsAllowed: allowed, CurrentHealthy: 1 + allowed, DesiredHealthy: 2, ExpectedPods: 9}
	if _, err := api.UpdateStatus(g.t.Context(), b, metav1.UpdateOptions{}); err != nil {
		g.t.Fatal(err)
	}
}

func (g guarded) evict(name string, opts *metav1.DeleteOptions) error {
	return g.api.PolicyV1().Evictions("default").Evict(g.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, DeleteOptions: opts})
}

func (g guarded) lives(name string) bool {
	g.t.Helper()
	p, err := g.api.CoreV1().Pods("default").Get(g.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		g.t.Fatal(err)
	}
	return err == nil && p.DeletionTimestamp == nil
}

func TestEvictionsAskTheBudget(t *testing.T) {
	g := guarded{t, admin(t, start(t))}
	for i := range 3 {
		g.run(fmt.Sprint("p", i), true)
	}
	g.budget("b", 1)
	if err := g.evict("p0", &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil || !g.lives("p0") {
		t.Errorf("dry run: %v", err)
	}
	if err := g.evict("p0", nil); err != nil || g.lives("p0") {
		t.Errorf("the first: %v", err)
	}
	b, err := g.api.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, noted := b.Status.DisruptedPods["p0"]; !noted || b.Status.DisruptionsAllowed != 0 {
		t.Errorf("budget %+v", b.Status)
	}
	for _, opts := range []*metav1.DeleteOptions{nil, {DryRun: []string{metav1.DryRunAll}}} {
		if err := g.evict("p1", opts); !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) || !g.lives("p1") {
			t.Errorf("the second: %v", err)
		}
	}
	// One that is on its way asks nobody.
	if err := g.evict("p0", nil); err != nil {
		t.Errorf("the first again: %v", err)
	}
	g.budget("c", 5)
	if err := g.evict("p1", nil); !apierrors.IsInternalError(err) && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown || g.lives("p1") == false {
		t.Errorf("two budgets: %v", err)
	} else if want := "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."; err.Error() != want {
		t.Errorf("two budgets: %v", err)
	}
}

// A pod that is not ready goes if the budget has enough without it.
func TestEvictionOfAnUnreadyPod(t *testing.T) {
	g := guarded{t, admin(t, start(t))}
	g.run("sick", false)
	g.run("well", true)
	g.budget("b", 1) // 2 of 2 are healthy
	b, err := g.api.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.Status.DisruptionsAllowed = 0
	if _, err = g.api.PolicyV1().PodDisruptionBudgets("default").UpdateStatus(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := g.evict("well", nil); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a ready one: %v", err)
	}
	if err := g.evict("sick", nil); err != nil || g.lives("sick") {
		t.Errorf("one that is not ready: %v", err)
	}
}

// However many ask at once, the budget is not spent twice.
func TestEvictionsAtOnce(t *testing.T) {
	g := guarded{t, admin(t, start(t))}
	const pods, allowed = 16, 5
	for i := range pods {
		g.run(fmt.Sprint("p", i), true)
	}
	g.budget("b", allowed)
	var granted atomic.Int32
	var asking sync.WaitGroup
	for i := range pods {
		asking.Go(func() {
			switch err := g.evict(fmt.Sprint("p", i), nil); {
			case err == nil:
				granted.Add(1)
			case !apierrors.IsTooManyRequests(err):
				t.Errorf("p%d: %v", i, err)
			}
		})
	}
	asking.Wait()
	if granted.Load() != allowed {
		t.Errorf("%d evictions were granted, want %d", granted.Load(), allowed)
	}
}
