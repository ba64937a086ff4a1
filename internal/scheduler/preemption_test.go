package scheduler

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// crowded is a scheduler with full nodes, whose victims are asked to go at once and go when the test says so.
type crowded struct {
	*bench
	t *testing.T
}

// newCrowded has a pod of priority 5 on each of 40 nodes, which fills it.
func newCrowded(t *testing.T) *crowded {
	cfg := DefaultConfig()
	cfg.InitialBackoff = time.Nanosecond // no pod waits for its time
	c := &crowded{newBench(t, 0, cfg), t}
	t.Cleanup(c.stop)
	for i := range 40 {
		c.nodeAdded(t.Context(), benchNode(i, "4", "32Gi", "110"))
		c.fill(i, 5)
	}
	return c
}

// fill puts a pod that fills it on node-I, in place of the one that is there.
func (c *crowded) fill(i int, priority int32) *v1.Pod {
	p := c.pod(fmt.Sprintf("there-%d", i), "4")
	p.Spec.NodeName, p.Spec.Priority, p.Labels = fmt.Sprintf("node-%d", i), &priority, map[string]string{"node": fmt.Sprint(i)}
	p.UID = types.UID(fmt.Sprintf("%s-%d", p.Name, priority))
	p.Spec.TerminationGracePeriodSeconds = new(int64(0))
	for _, old := range []int32{3, 4, 5, 6} {
		c.cache.RemovePod(types.UID(fmt.Sprintf("%s-%d", p.Name, old)))
	}
	c.podChanged(c.t.Context(), nil, p)
	if err := c.shared.Informers.Core().V1().Pods().Informer().GetIndexer().Add(p); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// preempt schedules an important pod, and returns whom it preempts.
func (c *crowded) preempt(name string) (p *v1.Pod, victim string) {
	c.t.Helper()
	p = c.pod(name, "4")
	p.Spec.Priority = new(int32(1000))
	c.podChanged(c.t.Context(), nil, p)
	c.scheduleUntil(c.t, p)
	select {
	case victim = <-c.deleted:
	case <-time.After(10 * time.Second):
		c.t.Fatalf("%s preempts nobody", name)
	}
	return p, victim
}

func TestRoomIsLookedForAnewWhereSomethingHasChanged(t *testing.T) {
	c := newCrowded(t)
	c.fill(7, 4)
	c.fill(9, 6) // for later
	c.fill(11, 6)
	if _, victim := c.preempt("first"); victim != "there-7" {
		t.Errorf("the first pod preempts %s, not the least important one", victim)
	}
	if _, victim := c.preempt("second"); victim == "there-7" {
		t.Error("the second pod wants the room that is being made for the first one")
	}
	c.fill(9, 3)
	if _, victim := c.preempt("third"); victim != "there-9" {
		t.Errorf("the third pod preempts %s, not the one that has become the least important", victim)
	}
	c.fill(11, 4)
	budgets := c.shared.Informers.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer()
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default", UID: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"node": "11"}}},
	}
	if err := budgets.Add(budget); err != nil {
		t.Fatal(err)
	}
	if _, victim := c.preempt("fourth"); victim == "there-11" {
		t.Error("the fourth pod breaks a budget")
	}
	allowed := budget.DeepCopy()
	allowed.Status.DisruptionsAllowed = 1
	if err := budgets.Update(allowed); err != nil {
		t.Fatal(err)
	}
	if _, victim := c.preempt("fifth"); victim != "there-11" {
		t.Errorf("the fifth pod preempts %s, although the budget allows the less important one now", victim)
	}
}

// TestAPodWhoseVictimsAreDeletedWaitsToSeeIt: pods without a grace period are gone from the API before anything is seen
// of it. Whoever preempted them must not look for others meanwhile.
func TestAPodWhoseVictimsAreDeletedWaitsToSeeIt(t *testing.T) {
	c := newCrowded(t)
	p, victim := c.preempt("p")
	gate, ok := c.profiles[v1.DefaultSchedulerName].Plugin("DefaultPreemption").(fwk.PreEnqueuePlugin)
	if !ok {
		t.Fatal("DefaultPreemption has no gate")
	}
	open := func() bool { return gate.PreEnqueue(t.Context(), p).IsSuccess() }
	time.Sleep(100 * time.Millisecond) // it has had the API's answer
	if open() {
		t.Error("the pod is let into the queue before its victim is seen to be gone")
	}
	pods := c.shared.Informers.Core().V1().Pods().Informer().GetIndexer()
	there, exists, err := pods.GetByKey("default/" + victim)
	if err != nil || !exists {
		t.Fatal(exists, err)
	}
	if err := pods.Delete(there); err != nil {
		t.Fatal(err)
	}
	if !open() {
		t.Fatal("the pod is not let into the queue although its victim is gone")
	}
	// Something else wakes it before the scheduler has heard of that.
	c.queue.Activate(klog.FromContext(t.Context()), map[string]*v1.Pod{"default/p": p})
	c.scheduleUntil(t, p)
	select {
	case other := <-c.deleted:
		t.Errorf("%s is preempted, too", other)
	case <-time.After(100 * time.Millisecond):
	}
	v, _ := there.(*v1.Pod)
	c.podDeleted(t.Context(), v)
	c.scheduleUntil(t, p)
	if to := (<-c.bound).Target.Name; to != v.Spec.NodeName {
		t.Errorf("the pod is bound to %s, not to %s", to, v.Spec.NodeName)
	}
}

// TestAVictimThatWasNeverBoundOpensTheGate: its binding failed in the moment in which it was to be preempted, so that it
// was deleted. Whoever preempted it slept for a minute.
func TestAVictimThatWasNeverBoundOpensTheGate(t *testing.T) {
	c := newCrowded(t)
	p, victim := c.preempt("p")
	time.Sleep(100 * time.Millisecond) // it has had the API's answer
	// Something wakes it meanwhile, in vain.
	c.queue.Activate(klog.FromContext(t.Context()), map[string]*v1.Pod{"default/p": p})
	if active, backoff, _, gated := c.queue.Lengths(); active != 0 || backoff != 0 || gated != 1 {
		t.Fatalf("the pod does not wait behind the gate: %d, %d, %d", active, backoff, gated)
	}
	pods := c.shared.Informers.Core().V1().Pods().Informer().GetIndexer()
	there, exists, err := pods.GetByKey("default/" + victim)
	if err != nil || !exists {
		t.Fatal(exists, err)
	}
	if err := pods.Delete(there); err != nil {
		t.Fatal(err)
	}
	v, _ := there.(*v1.Pod)
	v = v.DeepCopy()
	v.Spec.NodeName = ""
	c.podDeleted(t.Context(), v)
	c.scheduleUntil(t, p)
	if to := (<-c.bound).Target.Name; to == "" {
		t.Error("the pod is not bound")
	}
}

// TestRoomThatNobodyIsNominatedForAnyMoreIsFound, although the node itself has not changed.
func TestRoomThatNobodyIsNominatedForAnyMoreIsFound(t *testing.T) {
	c := newCrowded(t)
	victim := c.fill(7, 4)
	first, _ := c.preempt("first")
	c.podDeleted(t.Context(), victim)
	c.preempt("second")
	c.podDeleted(t.Context(), first)
	third := c.pod("third", "4")
	third.Spec.Priority = new(int32(1000))
	c.podChanged(t.Context(), nil, third)
	c.scheduleUntil(t, third)
	select {
	case b := <-c.bound:
		if b.Target.Name != "node-7" {
			t.Errorf("the third pod is bound to %s", b.Target.Name)
		}
	case other := <-c.deleted:
		t.Errorf("%s is preempted, although there is room", other)
	case <-time.After(10 * time.Second):
		t.Error("the third pod is not bound")
	}
}
