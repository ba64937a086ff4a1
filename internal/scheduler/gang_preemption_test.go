package scheduler_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// meek makes a pod preempt nobody.
func meek(p *v1.Pod) { p.Spec.PreemptionPolicy = new(v1.PreemptNever) }

// gangOf is a gang of a priority.
func gangOf(name string, least, priority int32, change ...func(*schedulingv1beta1.PodGroup)) *schedulingv1beta1.PodGroup {
	g := gang(name, least)
	g.Spec.Priority = &priority
	for _, c := range change {
		c(g)
	}
	return g
}

// whole makes a group be disrupted as a whole.
func whole(g *schedulingv1beta1.PodGroup) {
	g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
}

func TestPreemptionForAGang(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: app("db")},
	}
	db := labelled("app", "db")
	a, b := pod("a", "1", member("g"), priority(5)), pod("b", "1", member("g"), priority(5))
	meekA, meekB := pod("a", "1", member("g"), priority(5), meek), pod("b", "1", member("g"), priority(5), meek)
	for name, tc := range map[string]struct {
		has   []runtime.Object
		gang  []*v1.Pod
		bound int
		left  string // the pods that exist in the end, but for the gang's
	}{
		"room for all of it": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), pod("low1", "1", on("n1")), pod("low2", "1", on("n2")), gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 2, ""},
		"no more than it must": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), node("n3", "1"), pod("low2", "1", on("n2")), pod("low3", "1", on("n3"), priority(1)),
			gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 2, "low3"},
		"several where they matter less": {[]runtime.Object{
			node("n1", "2"), node("n2", "2"), pod("y", "2", on("n1"), priority(1)), pod("x1", "1", on("n2")), pod("x2", "1", on("n2")),
			gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 2, "y"},
		"the less important ones": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), node("n3", "1"), pod("p1", "1", on("n1"), priority(3)), pod("p2", "1", on("n2"), priority(1)),
			pod("p3", "1", on("n3"), priority(2)), gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 2, "p1"},
		"where no budget breaks": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), node("n3", "1"), pod("p1", "1", on("n1"), db), pod("p2", "1", on("n2"), priority(1)),
			pod("p3", "1", on("n3"), priority(2)), budget, gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 2, "p1"},
		"a budget if it must": {[]runtime.Object{
			node("n1", "2"), pod("p1", "1", on("n1"), db), pod("p2", "1", on("n1"), priority(1)), budget, gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 2, ""},
		"nobody in vain": {[]runtime.Object{
			node("n1", "1"), pod("low", "1", on("n1")), gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 0, "low"},
		"not of the same priority": {[]runtime.Object{
			node("n1", "2"), pod("p1", "1", on("n1"), priority(4)), pod("p2", "1", on("n1"), priority(5)), gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 0, "p1 p2"},
		"never, says the group": {[]runtime.Object{
			node("n1", "2"), pod("p1", "2", on("n1")), gangOf("g", 2, 5, func(g *schedulingv1beta1.PodGroup) {
				g.Spec.PreemptionPolicy = new(schedulingv1beta1.PreemptNever)
			}),
		}, []*v1.Pod{meekA, meekB}, 0, "p1"},
		"never, say the pods": {[]runtime.Object{
			node("n1", "2"), pod("p1", "2", on("n1")), gangOf("g", 2, 5),
		}, []*v1.Pod{meekA, meekB}, 0, "p1"},
		"out of each other's way": {[]runtime.Object{
			node("n1", "9"), node("n2", "9"), pod("p1", "1", on("n1"), labelled("app", "x")), pod("p2", "1", on("n2"), labelled("app", "x")),
			pod("p3", "1", on("n2")), gangOf("g", 2, 5),
		}, []*v1.Pod{
			pod("a", "1", member("g"), priority(5), labelled("app", "x"), apart(v1.LabelHostname)),
			pod("b", "1", member("g"), priority(5), labelled("app", "x"), apart(v1.LabelHostname)),
		}, 2, "p3"},
		"three out of each other's way, and no one else's": {[]runtime.Object{
			node("n1", "9"), node("n2", "9"), node("n3", "9"), pod("p1", "1", on("n1"), labelled("app", "x")),
			pod("p2", "1", on("n2"), labelled("app", "x")), pod("p3", "1", on("n3"), labelled("app", "x")),
			pod("q1", "1", on("n1"), labelled("app", "y")), pod("q2", "1", on("n2"), labelled("app", "y")), pod("q3", "1", on("n3")),
			gangOf("g", 3, 5),
		}, []*v1.Pod{
			pod("a", "1", member("g"), priority(5), labelled("app", "x"), apart(v1.LabelHostname)),
			pod("b", "1", member("g"), priority(5), labelled("app", "x"), apart(v1.LabelHostname)),
			pod("c", "1", member("g"), priority(5), labelled("app", "x"), apart(v1.LabelHostname)),
		}, 3, "q1 q2 q3"},
		"with a pod that runs already": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), pod("a0", "1", on("n1"), member("g"), priority(5)), pod("low", "1", on("n2")), gangOf("g", 2, 5),
		}, []*v1.Pod{a}, 1, "a0"},
		"for one more than it needs": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), pod("a0", "1", on("n1"), member("g"), priority(5)), pod("low", "1", on("n2")), gangOf("g", 1, 5),
		}, []*v1.Pod{a}, 1, "a0"},
		"a gang as a whole": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), node("n3", "1"), gangOf("h", 2, 1, whole), pod("h1", "1", on("n1"), member("h")),
			pod("h2", "1", on("n2"), member("h")), pod("p3", "1", on("n3"), priority(2)), gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 2, "p3"},
		"a pod rather than one of a group": {[]runtime.Object{
			node("n1", "2"), gangOf("h", 1, 0), pod("h1", "1", on("n1"), member("h")), pod("p1", "1", on("n1")), gangOf("g", 1, 5),
		}, []*v1.Pod{a}, 1, "h1"},
		"any of a basic group, on more than one node": {[]runtime.Object{
			node("n1", "9", in("1")), node("n2", "9", in("1")), pod("p1", "1", on("n1"), labelled("app", "x")),
			pod("p2", "1", on("n2"), labelled("app", "x")), pod("p3", "1", on("n2")), gangOf("g", 0, 5),
		}, []*v1.Pod{pod("a", "1", member("g"), priority(5), apart(v1.LabelTopologyZone))}, 1, "p3"},
		"pods rather than a gang": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), node("n3", "2"), gangOf("h", 2, 1, whole), pod("h1", "1", on("n1"), member("h")),
			pod("h2", "1", on("n2"), member("h")), pod("p3", "2", on("n3"), priority(1)), gangOf("g", 2, 5),
		}, []*v1.Pod{a, b}, 2, "h1 h2"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startGrouped(t, tc.has...)
				defer c.stop()
				own := map[string]bool{}
				for _, p := range tc.gang {
					own[p.Name] = true
					c.create(p.DeepCopy())
				}
				c.settle()
				c.settle()
				bound, left := 0, []string{}
				for _, name := range c.names() {
					switch {
					case !own[name]:
						left = append(left, name)
					case c.get(name).Spec.NodeName != "":
						bound++
					}
				}
				if got := strings.Join(left, " "); bound != tc.bound || got != tc.left {
					t.Errorf("%d of the gang are bound and the others are %q, want %d and %q: %s", bound, got, tc.bound, tc.left, c.condition())
				}
			})
		})
	}
}

// TestAGangsVictimsAreUnimportantAndNeeded: in random clusters, a gang for which there can be room gets it; no pod is
// preempted that is more important than it must be, and none that would fit beside the gang.
func TestAGangsVictimsAreUnimportantAndNeeded(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // to be played again
			size, cpu := 1+r.IntN(4), int64(500*(1+r.IntN(3)))
			free := map[string]int64{} // by node
			var has []runtime.Object
			there := map[string]*v1.Pod{}
			for i := range 2 + r.IntN(4) {
				n := fmt.Sprintf("n%d", i)
				free[n] = int64(1000 * (1 + r.IntN(4)))
				has = append(has, node(n, fmt.Sprintf("%dm", free[n]), room(99)))
				for j := range r.IntN(6) {
					want := int64(250 * (1 + r.IntN(6)))
					if want > free[n] {
						continue
					}
					free[n] -= want
					p := pod(fmt.Sprintf("p%d-%d", i, j), fmt.Sprintf("%dm", want), on(n), priority(int32(r.IntN(7))))
					there[p.Name], has = p, append(has, p)
				}
			}
			// fits counts for how many pods of the gang there is room without pods of priorities below p.
			fits := func(p int32) (sum int) {
				room := maps.Clone(free)
				for _, other := range there {
					if *other.Spec.Priority < p {
						room[other.Spec.NodeName] += requested(other)
					}
				}
				for _, left := range room {
					sum += int(left / cpu)
				}
				return sum
			}
			c := startGrouped(t, append(has, gangOf("g", int32(size), 5))...)
			defer c.stop()
			var gang []string
			for i := range size {
				gang = append(gang, fmt.Sprintf("g%d", i))
				c.create(pod(gang[i], fmt.Sprintf("%dm", cpu), member("g"), priority(5)))
			}
			c.settle()
			c.settle()
			names := c.names()
			if fits(5) < size {
				if len(names) < len(there)+size || c.bound(gang...) > 0 {
					t.Errorf("seed %d: there cannot be room for the gang, and there are %v: %s", seed, names, c.condition())
				}
				return
			}
			if n := c.bound(gang...); n != size {
				t.Fatalf("seed %d: %d of the gang are bound, and there can be room for %d: %s", seed, n, size, c.condition())
			}
			used := map[string]int64{}
			for _, name := range names {
				p := c.get(name)
				used[p.Spec.NodeName] += requested(p)
			}
			for _, p := range there {
				if slices.Contains(names, p.Name) {
					continue
				}
				node := p.Spec.NodeName
				if least := *p.Spec.Priority; fits(least) >= size {
					t.Errorf("seed %d: %s of priority %d is preempted, and the less important ones would have been enough", seed, p.Name, least)
				}
				total := free[node]
				for _, other := range there {
					if other.Spec.NodeName == node {
						total += requested(other)
					}
				}
				if used[node]+requested(p) <= total {
					t.Errorf("seed %d: %s is preempted, and would fit on %s beside the gang", seed, p.Name, node)
				}
			}
		})
	}
}

// TestAGangsVictimsLeaveInPeace: while they do, nobody else is preempted for the gang, and nobody takes their room.
func TestAGangsVictimsLeaveInPeace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startGrouped(t, node("n1", "1"), node("n2", "1"), node("n3", "1"), pod("low1", "1", on("n1")), pod("low2", "1", on("n2")),
			pod("more", "1", on("n3"), priority(2)), gangOf("g", 2, 5))
		defer c.stop()
		gone := c.graceful()
		c.create(pod("a", "1", member("g"), priority(5)))
		c.create(pod("b", "1", member("g"), priority(5)))
		c.settle()
		for _, name := range []string{"low1", "low2"} {
			victim := c.get(name)
			if victim.DeletionTimestamp == nil {
				t.Fatalf("%s is not preempted: %s", name, c.condition())
			}
			cond := victim.Status.Conditions
			if len(cond) != 1 || cond[0].Message != "default-scheduler: preempting to accommodate a higher priority podgroup" {
				t.Errorf("conditions of %s: %+v", name, cond)
			}
			c.wantEvent(name, "Preempted", "Preempted by podgroup group-g on node "+victim.Spec.NodeName)
		}
		if x, y := c.get("a").Status.NominatedNodeName, c.get("b").Status.NominatedNodeName; x == "" || y == "" || x == y {
			t.Errorf("the pods are nominated for %q and %q", x, y)
		}
		gone("low1")
		c.create(pod("small", "1", priority(2)))
		c.create(pod("stranger", "0", on("n1")))
		c.delete("stranger")
		c.settle()
		if c.get("more").DeletionTimestamp != nil {
			t.Error("another pod was preempted for the gang")
		}
		if c.bound("a", "b", "small") != 0 {
			t.Error("somebody has the gang's room, or half of the gang runs")
		}
		gone("low2")
		c.settle()
		if n := c.bound("a", "b"); n != 2 {
			t.Errorf("%d of the gang are bound when its victims are gone: %s", n, c.condition())
		}
		c.wantNode("small", "")
	})
}

// TestAGangThatLosesAPodGivesUpItsRoom: it cannot run, and must not keep others off the nodes.
func TestAGangThatLosesAPodGivesUpItsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startGrouped(t, node("n1", "1"), node("n2", "1"), pod("low1", "1", on("n1")), pod("low2", "1", on("n2")), gangOf("g", 2, 5))
		defer c.stop()
		gone := c.graceful()
		c.create(pod("a", "1", member("g"), priority(5)))
		c.create(pod("b", "1", member("g"), priority(5)))
		c.settle()
		c.create(pod("small1", "1", priority(2)))
		c.create(pod("small2", "1", priority(2)))
		c.settle()
		c.delete("b")
		c.settle()
		c.wantMessage("a", "waiting for minCount pods from a gang to be created: there are 1 of 2")
		if node := c.get("a").Status.NominatedNodeName; node != "" {
			t.Errorf("a is still nominated for %s", node)
		}
		gone("low1")
		gone("low2")
		c.settle()
		if n := c.bound("small1", "small2"); n != 2 {
			t.Errorf("%d of two pods have the room that was made for a gang which cannot run", n)
		}
		// With another pod, it takes the room after all.
		c.create(pod("c", "1", member("g"), priority(5)))
		c.settle()
		if c.get("small1").DeletionTimestamp == nil || c.get("small2").DeletionTimestamp == nil {
			t.Error("the gang that is complete again preempts nobody")
		}
	})
}

// TestAGroupIsPreemptedAsAWhole: if it wants that, by a single pod, too; otherwise its pods go one by one.
func TestAGroupIsPreemptedAsAWhole(t *testing.T) {
	for name, tc := range map[string]struct {
		group *schedulingv1beta1.PodGroup
		left  string
		told  bool
	}{
		"all":    {gangOf("h", 2, 1, whole), "p", true},
		"single": {gangOf("h", 2, 1), "h2 p", false},
		// The group's priority counts for its pods.
		"important": {gangOf("h", 2, 7, whole), "h1 h2 p", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startGrouped(t, node("n1", "1"), node("n2", "1", func(n *v1.Node) { n.Spec.Unschedulable = true }), tc.group,
					pod("h1", "1", on("n1"), member("h")), pod("h2", "1", on("n2"), member("h")))
				defer c.stop()
				c.create(pod("p", "1", priority(5)))
				c.settle()
				if got := strings.Join(c.names(), " "); got != tc.left {
					t.Errorf("there are %s, want %s", got, tc.left)
				}
				g, err := c.client.SchedulingV1beta1().PodGroups("default").Get(t.Context(), "h", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				cond := meta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.DisruptionTarget)
				if (cond != nil) != tc.told {
					t.Fatalf("conditions of the group: %+v", g.Status.Conditions)
				}
				if cond != nil && (cond.Reason != "PreemptionByScheduler" || cond.Message != "default-scheduler: preempting to accommodate a higher priority pod") {
					t.Errorf("condition of the group: %+v", cond)
				}
			})
		})
	}
}
