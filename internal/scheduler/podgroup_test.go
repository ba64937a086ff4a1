package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/scheduler"
)

// gang returns a group of which none runs before least can; of a basic one, for which least is 0, each pod is on its
// own.
func gang(name string, least int32) *schedulingv1beta1.PodGroup {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("group-" + name)}}
	if least > 0 {
		g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: least}
	} else {
		g.Spec.SchedulingPolicy.Basic = &schedulingv1beta1.BasicSchedulingPolicy{}
	}
	return g
}

func member(group string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group} }
}

func room(pods int64) func(*v1.Node) {
	return func(n *v1.Node) {
		n.Status.Allocatable[v1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	}
}

func startGrouped(t *testing.T, objs ...runtime.Object) *cluster {
	t.Helper()
	cfg := scheduler.DefaultConfig()
	cfg.PodGroups = true
	return startConfig(t, cfg, same, objs...)
}

// condition returns PodGroupInitiallyScheduled of the group g as "status reason: message".
func (c *cluster) condition() string {
	c.t.Helper()
	g, err := c.client.SchedulingV1beta1().PodGroups("default").Get(c.t.Context(), "g", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	cond := meta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
	if cond == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", cond.Status, cond.Reason, cond.Message)
}

// wantCondition checks the condition of the group g.
func (c *cluster) wantCondition(want string) {
	c.t.Helper()
	if got := c.condition(); got != want {
		c.t.Errorf("%q, want %q", got, want)
	}
}

// bound returns how many of the pods have a node.
func (c *cluster) bound(names ...string) (n int) {
	c.t.Helper()
	for _, name := range names {
		if c.get(name).Spec.NodeName != "" {
			n++
		}
	}
	return n
}

func TestAGangRunsTogetherOrNotAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startGrouped(t, node("n1", "2"), node("n2", "2", func(n *v1.Node) { n.Spec.Unschedulable = true }))
		defer c.stop()
		all := []string{"a", "b", "c"}
		// Without the group, and then without enough pods, none is tried.
		c.create(pod("a", "1", member("g")))
		c.settle()
		if _, err := c.client.SchedulingV1beta1().PodGroups("default").Create(t.Context(), gang("g", 3), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.create(pod("b", "1", member("g")))
		c.settle()
		if got := c.get("a").Status.Conditions; len(got) != 0 {
			t.Errorf("a pod was tried before its gang was there: %+v", got)
		}
		// There is room for two of three.
		c.create(pod("c", "1", member("g")))
		c.settle()
		if n := c.bound(all...); n != 0 {
			t.Fatalf("%d pods of a gang that does not fit are bound", n)
		}
		c.wantMessage("a", "waiting for minCount pods from a gang to be scheduled")
		c.wantMessage("c", "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.")
		c.wantCondition("False Unschedulable: 2 pod(s) of 3 could be scheduled, minCount is 3: " +
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. " +
			"pod group preemption: No preemption victims found for incoming preemptor")
		// Its room is not held meanwhile.
		c.create(pod("other", "2"))
		c.settle()
		c.wantNode("other", "n1")
		c.delete("other")
		if _, err := c.client.CoreV1().Nodes().Update(t.Context(), node("n2", "2"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.settle()
		if n := c.bound(all...); n != 3 {
			t.Fatalf("%d pods of the gang are bound, want 3", n)
		}
		c.wantCondition("True Scheduled: ")
		// One that comes later is scheduled alone, or waits alone.
		c.create(pod("d", "1", member("g")))
		c.create(pod("e", "1", member("g")))
		c.settle()
		if n := c.bound("d", "e"); n != 1 {
			t.Errorf("%d of two further pods are bound, and there was room for one", n)
		}
		c.wantCondition("True Scheduled: ")
	})
}

func TestAnythingThatMayHelpAGangWakesIt(t *testing.T) {
	for name, tc := range map[string]struct {
		least int32
		help  func(c *cluster)
	}{
		"a node": {3, func(c *cluster) {
			if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), node("n2", "1"), metav1.CreateOptions{}); err != nil {
				c.t.Fatal(err)
			}
		}},
		"a pod that goes": {3, func(c *cluster) { c.delete("other") }},
		"a smaller pod":   {3, func(c *cluster) { c.create(pod("d", "0", member("g"))) }},
		"fewer are wanted": {3, func(c *cluster) {
			g := gang("g", 2)
			if _, err := c.client.SchedulingV1beta1().PodGroups("default").Update(c.t.Context(), g, metav1.UpdateOptions{}); err != nil {
				c.t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startGrouped(t, node("n1", "3", room(9)), pod("other", "1", on("n1")), gang("g", tc.least),
					pod("a", "1", member("g")), pod("b", "1", member("g")), pod("c", "1", member("g")))
				defer c.stop()
				c.settle()
				if n := c.bound("a", "b", "c"); n != 0 {
					t.Fatalf("%d pods are bound", n)
				}
				began := time.Now()
				tc.help(c)
				c.settle()
				if n := c.bound("a", "b", "c"); n < 2 {
					t.Errorf("%d pods are bound %v later: %s", n, time.Since(began), c.condition())
				}
			})
		})
	}
}

// TestAGangPreemptsNobodyInVain: pods of lower priority stay if the gang as a whole would find no room.
func TestAGangPreemptsNobodyInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startGrouped(t, node("n1", "1"), pod("low", "1", on("n1")), gangOf("g", 2, 5),
			pod("a", "1", member("g"), priority(5)), pod("b", "1", member("g"), priority(5)))
		defer c.stop()
		c.settle()
		if c.get("low").DeletionTimestamp != nil || c.bound("a", "b") != 0 {
			t.Error("a pod was preempted for a gang that does not fit")
		}
	})
}

func TestABasicGroupsPodsAreOnTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startGrouped(t, node("n1", "2"), pod("low", "1", on("n1")), gangOf("g", 0, 5),
			pod("a", "1", member("g"), priority(5)), pod("b", "1", member("g"), priority(5)), pod("c", "1", member("g"), priority(5)))
		defer c.stop()
		c.settle()
		if n := c.bound("a", "b", "c"); n != 2 {
			t.Errorf("%d of three are bound, and there is room for two when the less important one is gone", n)
		}
		c.wantCondition("True Scheduled: ")
	})
}

// TestPodsOfAGroupAreAlike: none is scheduled while one of them, even one that runs, is not like its group. A pod whose
// own priority is low, which a quota may count, does not preempt others by that of its group.
func TestPodsOfAGroupAreAlike(t *testing.T) {
	low := pod("low", "4", on("n1"))
	for name, tc := range map[string]struct {
		objs []runtime.Object
		told string
	}{
		"schedulers": {[]runtime.Object{
			gangOf("g", 2, 5), pod("a", "1", member("g"), priority(5)),
			pod("b", "1", member("g"), priority(5), func(p *v1.Pod) { p.Spec.SchedulerName = "second" }),
		}, `.spec.schedulerName set, got: "default-scheduler" and "second"`},
		"priority": {[]runtime.Object{
			gangOf("g", 2, 5), pod("a", "1", member("g")), pod("b", "1", member("g"), priority(5)), low,
		}, "priority as the pod group's priority, got 0 and 5"},
		"of one that runs": {[]runtime.Object{
			gangOf("g", 2, 5), pod("a", "1", member("g"), priority(5)), pod("b", "1", member("g"), priority(5)), low,
			pod("c", "0", member("g"), on("n1"), priority(6)),
		}, "priority as the pod group's priority, got 6 and 5"},
		"preemption policy": {[]runtime.Object{
			gangOf("g", 2, 5), pod("a", "1", member("g"), priority(5)), pod("b", "1", member("g"), priority(5), meek), low,
		}, "preemption policy, got Never and PreemptLowerPriority"},
		"the group's preemption policy": {[]runtime.Object{
			gangOf("g", 2, 5, func(g *schedulingv1beta1.PodGroup) { g.Spec.PreemptionPolicy = new(schedulingv1beta1.PreemptNever) }),
			pod("a", "1", member("g"), priority(5)), pod("b", "1", member("g"), priority(5)), low,
		}, "preemption policy as the pod group's preemption policy, got PreemptLowerPriority and Never"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := scheduler.DefaultConfig()
				cfg.PodGroups = true
				cfg.Profiles = append(cfg.Profiles, scheduler.ProfileConfig{SchedulerName: "second"})
				c := startConfig(t, cfg, same, append(tc.objs, node("n1", "4"))...)
				defer c.stop()
				c.settle()
				if n := c.bound("a", "b"); n != 0 {
					t.Errorf("%d are bound", n)
				}
				c.wantCondition("False SchedulerError: all pods in a single pod group should have the same " + tc.told)
				if slices.Contains(tc.objs, runtime.Object(low)) && !slices.Contains(c.names(), "low") {
					t.Error("a pod was preempted")
				}
			})
		})
	}
}

// TestWithoutTheGateGroupsMeanNothing: as with upstream's scheduler.
func TestWithoutTheGateGroupsMeanNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("n1", "1"), pod("a", "1", member("g")), pod("b", "1", member("g")))
		defer c.stop()
		c.settle()
		if n := c.bound("a", "b"); n != 1 {
			t.Errorf("%d are bound, want 1", n)
		}
	})
}
