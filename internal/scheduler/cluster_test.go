package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	ktesting "k8s.io/client-go/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"wherry.dev/internal/scheduler"
)

func same(c kubernetes.Interface) kubernetes.Interface { return c }

func priority(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }

func on(node string) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.NodeName = node } }

func labelled(pairs ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			p.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func in(zone string) func(*v1.Node) {
	return func(n *v1.Node) { n.Labels[v1.LabelTopologyZone] = zone }
}

func app(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// settle lets back-offs end and the scheduler come to rest.
func (c *cluster) settle() {
	synctest.Wait()
	time.Sleep(15 * time.Second)
	synctest.Wait()
}

func (c *cluster) delete(name string) {
	c.t.Helper()
	if err := c.client.CoreV1().Pods("default").Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// names returns the pods that exist, in order.
func (c *cluster) names() []string {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods("").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	slices.Sort(out)
	return out
}

// graceful makes pods that have a node stay, with a deletion timestamp, until gone is called.
func (c *cluster) graceful() (gone func(name string)) {
	gvr := v1.SchemeGroupVersion.WithResource("pods")
	c.client.PrependReactor("delete", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		d, ok := a.(ktesting.DeleteAction)
		if !ok {
			return false, nil, nil
		}
		obj, err := c.client.Tracker().Get(gvr, d.GetNamespace(), d.GetName())
		if err != nil {
			return true, nil, err
		}
		p, ok := obj.(*v1.Pod)
		if !ok || p.Spec.NodeName == "" {
			return false, nil, nil
		}
		p = p.DeepCopy()
		now := metav1.Now()
		p.DeletionTimestamp = &now
		return true, p, c.client.Tracker().Update(gvr, p, d.GetNamespace())
	})
	return func(name string) {
		c.t.Helper()
		if err := c.client.Tracker().Delete(gvr, "default", name); err != nil {
			c.t.Fatal(err)
		}
		synctest.Wait()
	}
}

func TestPreemption(t *testing.T) {
	budget := func(name string, allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: app(name)},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}
	}
	never := v1.PreemptNever
	since := func(minutes int) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Status.StartTime = new(metav1.NewTime(time.Unix(int64(minutes)*60, 0))) }
	}
	for name, tc := range map[string]struct {
		has   []runtime.Object
		pod   *v1.Pod
		where string
		left  string // the pods that exist in the end
	}{
		"one of a lower priority": {[]runtime.Object{node("n1", "2"), pod("low", "2", on("n1"), priority(1))}, pod("p", "1", priority(2)), "n1", "p"},
		"not of the same":         {[]runtime.Object{node("n1", "2"), pod("low", "2", on("n1"), priority(2))}, pod("p", "1", priority(2)), "", "low p"},
		"never": {[]runtime.Object{node("n1", "2"), pod("low", "2", on("n1"), priority(1))}, pod("p", "1", priority(2), func(p *v1.Pod) {
			p.Spec.PreemptionPolicy = &never
		}), "", "low p"},
		"no more than it must": {[]runtime.Object{node("n1", "3"), pod("a", "1", on("n1"), priority(1)), pod("b", "2", on("n1"), priority(1))}, pod("p", "1", priority(2)), "n1", "a p"},
		"the lowest first":     {[]runtime.Object{node("n1", "2"), pod("a", "1", on("n1"), priority(1)), pod("b", "1", on("n1"), priority(0))}, pod("p", "1", priority(2)), "n1", "a p"},
		"the youngest first":   {[]runtime.Object{node("n1", "2"), pod("a", "1", on("n1"), since(2)), pod("b", "1", on("n1"), since(1))}, pod("p", "1", priority(2)), "n1", "b p"},
		"where they matter less": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), pod("a", "1", on("n1"), priority(3)), pod("b", "1", on("n2"), priority(2)),
		}, pod("p", "1", priority(4)), "n2", "a p"},
		"where they are fewer": {[]runtime.Object{
			node("n1", "2"), node("n2", "2"), pod("a", "1", on("n1")), pod("b", "1", on("n1")), pod("c", "2", on("n2")),
		}, pod("p", "2", priority(4)), "n2", "a b p"},
		"where no budget breaks": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), pod("a", "1", on("n1"), labelled("app", "db")), pod("b", "1", on("n2"), priority(2)), budget("db", 0),
		}, pod("p", "1", priority(4)), "n2", "a p"},
		"what a budget allows": {[]runtime.Object{
			node("n1", "1"), node("n2", "1"), pod("a", "1", on("n1"), labelled("app", "db")), pod("b", "1", on("n2"), priority(2)), budget("db", 1),
		}, pod("p", "1", priority(4)), "n1", "b p"},
		"a budget if it must": {[]runtime.Object{node("n1", "1"), pod("a", "1", on("n1"), labelled("app", "db")), budget("db", 0)}, pod("p", "1", priority(4)), "n1", "p"},
		"not where it could not run": {[]runtime.Object{
			node("n1", "1", func(n *v1.Node) { n.Spec.Unschedulable = true }), pod("a", "1", on("n1")),
		}, pod("p", "1", priority(4)), "", "a p"},
		"for a port": {[]runtime.Object{node("n1", "4"), pod("a", "1", on("n1"), port(80)), pod("b", "1", on("n1"))}, pod("p", "1", port(80), priority(1)), "n1", "b p"},
		"out of the way": {[]runtime.Object{node("n1", "4"), pod("a", "1", on("n1"), labelled("app", "x")), pod("b", "1", on("n1"))},
			pod("p", "1", priority(1), apart(v1.LabelHostname)), "n1", "b p"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, tc.has...)
				defer c.stop()
				c.create(tc.pod)
				c.settle()
				c.wantNode("p", tc.where)
				if got := strings.Join(c.names(), " "); got != tc.left {
					t.Errorf("there are %s, want %s", got, tc.left)
				}
			})
		})
	}
}

func port(n int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: n, HostPort: n, Protocol: v1.ProtocolTCP}}
	}
}

// TestVictimsLeaveInPeace: while they do, nobody else is preempted for the same pod, nobody of a lower
// priority takes their room, and the pod gets it at once when they are gone.
func TestVictimsLeaveInPeace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("n1", "2"), node("n2", "2"), pod("a", "2", on("n1")), pod("b", "2", on("n2"), priority(2)))
		defer c.stop()
		gone := c.graceful()
		c.create(pod("p", "2", priority(3)))
		c.settle()
		victim := c.get("a")
		if victim.DeletionTimestamp == nil || c.get("b").DeletionTimestamp != nil {
			t.Fatal("the wrong pod is preempted")
		}
		if i := slices.IndexFunc(victim.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget }); i < 0 ||
			victim.Status.Conditions[i].Reason != "PreemptionByScheduler" || victim.Status.Conditions[i].Message != "default-scheduler: preempting to accommodate a higher priority pod" {
			t.Errorf("conditions of the victim: %+v", victim.Status.Conditions)
		}
		c.wantEvent("a", "Preempted", "Preempted by pod p on node n1")
		if got := c.get("p").Status.NominatedNodeName; got != "n1" {
			t.Errorf("p is nominated for %q", got)
		}
		// Something happens that wakes it.
		c.create(pod("small", "100m", priority(2)))
		c.create(pod("stranger", "0", on("n1")))
		c.delete("stranger")
		c.settle()
		if c.get("b").DeletionTimestamp != nil {
			t.Error("a second pod was preempted for the same one")
		}
		gone("a")
		synctest.Wait()
		c.wantNode("p", "n1")
		c.settle()
		c.wantNode("small", "")
	})
}

// TestAHigherPriorityTakesTheRoomThatWasMade: the pod for which it was made looks for another one.
func TestAHigherPriorityTakesTheRoomThatWasMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("n1", "2"), pod("a", "2", on("n1")))
		defer c.stop()
		gone := c.graceful()
		c.create(pod("p", "2", priority(1)))
		c.settle()
		c.create(pod("q", "2", priority(2)))
		c.settle()
		gone("a")
		c.settle()
		c.wantNode("q", "n1")
		c.wantNode("p", "")
		if got := c.get("p").Status.NominatedNodeName; got != "" {
			t.Errorf("p is still nominated for %q", got)
		}
	})
}

// together wants pods of app x in the same domain.
func together(key string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			LabelSelector: app("x"), TopologyKey: key,
		}}}}
	}
}

// apart wants none of them there.
func apart(key string, change ...func(*v1.PodAffinityTerm)) func(*v1.Pod) {
	return func(p *v1.Pod) {
		term := v1.PodAffinityTerm{LabelSelector: app("x"), TopologyKey: key}
		for _, f := range change {
			f(&term)
		}
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
	}
}

func TestAffinityToPods(t *testing.T) {
	const alone = "preemption: 0/2 nodes are available: "
	inNamespaces := func(labels map[string]string) func(*v1.PodAffinityTerm) {
		return func(t *v1.PodAffinityTerm) { t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: labels} }
	}
	elsewhere := func(p *v1.Pod) { p.Namespace = "other" }
	nodes := []runtime.Object{
		node("n1", "4", in("a")), node("n2", "4", in("b")),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "us"}}},
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "them"}}},
	}
	for name, tc := range map[string]struct {
		has   []runtime.Object
		pod   *v1.Pod
		where string
		msg   string
	}{
		"together":            {[]runtime.Object{pod("a", "0", on("n2"), labelled("app", "x"))}, pod("p", "0", together(v1.LabelTopologyZone)), "n2", ""},
		"with nobody":         {nil, pod("p", "0", together(v1.LabelTopologyZone)), "", "0/2 nodes are available: 2 node(s) didn't match pod affinity rules. " + alone + "2 Preemption is not helpful for scheduling."},
		"the first of a kind": {[]runtime.Object{pod("a", "1", on("n2"))}, pod("p", "0", labelled("app", "x"), together(v1.LabelTopologyZone)), "n1", ""},
		"no such key":         {[]runtime.Object{pod("a", "0", on("n2"), labelled("app", "x"))}, pod("p", "0", together("rack")), "", "0/2 nodes are available: 2 node(s) didn't match pod affinity rules. " + alone + "2 Preemption is not helpful for scheduling."},
		"apart":               {[]runtime.Object{pod("a", "0", on("n1"), labelled("app", "x"))}, pod("p", "0", apart(v1.LabelHostname)), "n2", ""},
		"apart from all": {[]runtime.Object{pod("a", "0", on("n1"), labelled("app", "x")), pod("b", "0", on("n2"), labelled("app", "x"))}, pod("p", "0", apart(v1.LabelHostname)), "",
			"0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules. " + alone + "2 No preemption victims found for incoming pod."},
		"others keep it away": {[]runtime.Object{pod("a", "0", on("n1"), apart(v1.LabelTopologyZone)), pod("b", "0", on("n2"), apart(v1.LabelTopologyZone))}, pod("p", "0", labelled("app", "x")), "",
			"0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules. " + alone + "2 No preemption victims found for incoming pod."},
		"another namespace does not count": {[]runtime.Object{pod("a", "1", on("n1")), pod("b", "0", on("n2"), labelled("app", "x"), elsewhere)}, pod("p", "0", apart(v1.LabelHostname)), "n2", ""},
		"a namespace that is selected": {[]runtime.Object{pod("a", "1", on("n1")), pod("b", "0", on("n2"), labelled("app", "x"), elsewhere)},
			pod("p", "0", apart(v1.LabelHostname, inNamespaces(map[string]string{"team": "them"}))), "n1", ""},
		"all namespaces": {[]runtime.Object{pod("a", "1", on("n1")), pod("b", "0", on("n2"), labelled("app", "x"), elsewhere)},
			pod("p", "0", apart(v1.LabelHostname, inNamespaces(nil))), "n1", ""},
		"their namespaces": {[]runtime.Object{pod("a", "1", on("n1")), pod("b", "0", on("n2"), elsewhere, apart(v1.LabelHostname, inNamespaces(map[string]string{"team": "us"})))},
			pod("p", "0", labelled("app", "x")), "n1", ""},
		"rather together": {[]runtime.Object{pod("a", "0", on("n1"), labelled("app", "x")), pod("b", "0", on("n1"))}, pod("p", "0", func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
				{Weight: 100, PodAffinityTerm: v1.PodAffinityTerm{LabelSelector: app("x"), TopologyKey: v1.LabelHostname}},
			}}}
		}), "n1", ""},
		"rather apart": {[]runtime.Object{pod("a", "0", on("n2"), labelled("app", "x")), pod("b", "1", on("n1"))}, pod("p", "0", func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
				{Weight: 100, PodAffinityTerm: v1.PodAffinityTerm{LabelSelector: app("x"), TopologyKey: v1.LabelHostname}},
			}}}
		}), "n1", ""},
		"who is wanted by others": {[]runtime.Object{pod("a", "0", on("n2"), labelled("app", "x"), together(v1.LabelHostname)), pod("b", "100m", on("n2"))}, pod("p", "0", labelled("app", "x")), "n2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, append(slices.Clone(nodes), tc.has...)...)
				defer c.stop()
				c.create(tc.pod)
				c.wantNode("p", tc.where)
				if tc.msg != "" {
					c.wantMessage("p", tc.msg)
				}
			})
		})
	}
}

// TestWhatWakesAPodWithAffinity: a friend comes, a foe goes, somebody's labels change.
func TestWhatWakesAPodWithAffinity(t *testing.T) {
	relabel := func(c *cluster, to string) {
		p := c.get("other").DeepCopy()
		p.Labels = map[string]string{"app": to}
		if _, err := c.client.CoreV1().Pods("default").Update(c.t.Context(), p, metav1.UpdateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		other   *v1.Pod
		pod     *v1.Pod
		happens func(*cluster)
		wakes   bool
	}{
		"a friend comes":              {nil, pod("p", "0", together(v1.LabelHostname)), func(c *cluster) { c.create(pod("f", "0", on("n1"), labelled("app", "x"))) }, true},
		"a stranger comes":            {nil, pod("p", "0", together(v1.LabelHostname)), func(c *cluster) { c.create(pod("f", "0", on("n1"), labelled("app", "y"))) }, false},
		"somebody becomes a friend":   {pod("other", "0", on("n1")), pod("p", "0", together(v1.LabelHostname)), func(c *cluster) { relabel(c, "x") }, true},
		"a foe goes":                  {pod("other", "0", on("n1"), labelled("app", "x")), pod("p", "0", apart(v1.LabelHostname)), func(c *cluster) { c.delete("other") }, true},
		"a foe becomes a stranger":    {pod("other", "0", on("n1"), labelled("app", "x")), pod("p", "0", apart(v1.LabelHostname)), func(c *cluster) { relabel(c, "y") }, true},
		"who kept it away goes":       {pod("other", "0", on("n1"), apart(v1.LabelHostname)), pod("p", "0", labelled("app", "x")), func(c *cluster) { c.delete("other") }, true},
		"who kept it away is renamed": {pod("other", "0", on("n1"), apart(v1.LabelHostname)), pod("p", "0", labelled("app", "x")), func(c *cluster) { relabel(c, "y") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objs := []runtime.Object{node("n1", "4")}
				if tc.other != nil {
					objs = append(objs, tc.other)
				}
				c := start(t, objs...)
				defer c.stop()
				c.create(tc.pod)
				c.settle()
				c.wantNode("p", "")
				tc.happens(c)
				c.settle()
				if tc.wakes {
					c.wantNode("p", "n1")
				} else {
					c.wantNode("p", "")
				}
			})
		})
	}
}

// TestTheLastFriendGoes: then a pod that is one of its own is the first of its kind.
func TestTheLastFriendGoes(t *testing.T) {
	for name, tc := range map[string]struct {
		labels string
		where  string
	}{"one of its own": {"x", "n1"}, "a stranger": {"y", ""}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, node("n1", "4"), node("n2", "4", func(n *v1.Node) { n.Spec.Unschedulable = true }), pod("other", "1", on("n2"), labelled("app", "x")))
				defer c.stop()
				c.create(pod("p", "1", labelled("app", tc.labels), together(v1.LabelHostname)))
				c.settle()
				c.wantNode("p", "")
				c.delete("other")
				c.settle()
				c.wantNode("p", tc.where)
			})
		})
	}
}

func spread(c v1.TopologySpreadConstraint) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c) }
}

func TestTopologySpread(t *testing.T) {
	x := labelled("app", "x")
	must := func(skew int32, key string, change ...func(*v1.TopologySpreadConstraint)) func(*v1.Pod) {
		c := v1.TopologySpreadConstraint{MaxSkew: skew, TopologyKey: key, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: app("x")}
		for _, f := range change {
			f(&c)
		}
		return spread(c)
	}
	tainted := func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}} }
	honor, ignore := v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore
	two := []runtime.Object{node("n1", "8", in("a")), node("n2", "4", in("b"))}
	version := func(v string) func(*v1.Pod) { return labelled("app", "x", "version", v) }
	const noVictims = " preemption: 0/2 nodes are available: "
	for name, tc := range map[string]struct {
		nodes []runtime.Object
		has   []runtime.Object
		pod   *v1.Pod
		where string
		msg   string
	}{
		"to the emptier zone":    {two, []runtime.Object{pod("a", "0", x, on("n1"))}, pod("p", "0", x, must(1, v1.LabelTopologyZone)), "n2", ""},
		"a larger skew":          {two, []runtime.Object{pod("a", "0", x, on("n1"))}, pod("p", "5", x, must(2, v1.LabelTopologyZone)), "n1", ""},
		"others do not count":    {two, []runtime.Object{pod("a", "0", on("n1"))}, pod("p", "5", x, must(1, v1.LabelTopologyZone)), "n1", ""},
		"who goes does not":      {two, []runtime.Object{pod("a", "0", x, on("n1"), func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()); p.Finalizers = []string{"x/y"} })}, pod("p", "5", x, must(1, v1.LabelTopologyZone)), "n1", ""},
		"it need not count":      {two, []runtime.Object{pod("a", "0", x, on("n1"))}, pod("p", "5", must(1, v1.LabelTopologyZone)), "n1", ""},
		"no room where it must":  {two, []runtime.Object{pod("a", "0", x, on("n1")), pod("full", "4", on("n2"), priority(9))}, pod("p", "1", x, must(1, v1.LabelTopologyZone)), "", "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod topology spread constraints." + noVictims + "2 No preemption victims found for incoming pod."},
		"a node without the key": {[]runtime.Object{node("n1", "4")}, nil, pod("p", "0", x, must(1, v1.LabelTopologyZone)), "", "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label). preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."},
		"too few domains": {two, []runtime.Object{pod("a", "0", x, on("n1")), pod("b", "0", x, on("n2"))}, pod("p", "0", x, must(1, v1.LabelTopologyZone, func(c *v1.TopologySpreadConstraint) {
			c.MinDomains = new(int32(3))
		})), "", "0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints." + noVictims + "2 No preemption victims found for incoming pod."},
		"a node it cannot choose does not count": {two, []runtime.Object{pod("a", "0", x, on("n1"))}, pod("p", "0", x, must(1, v1.LabelTopologyZone), func(p *v1.Pod) {
			p.Spec.NodeSelector = map[string]string{v1.LabelHostname: "n1"}
		}), "n1", ""},
		"unless it is to": {two, []runtime.Object{pod("a", "0", x, on("n1"))}, pod("p", "0", x, must(1, v1.LabelTopologyZone, func(c *v1.TopologySpreadConstraint) {
			c.NodeAffinityPolicy = &ignore
		}), func(p *v1.Pod) {
			p.Spec.NodeSelector = map[string]string{v1.LabelHostname: "n1"}
		}), "", ""},
		"a tainted node counts": {[]runtime.Object{node("n1", "8", in("a")), node("n2", "4", in("b"), tainted)}, []runtime.Object{pod("a", "0", x, on("n1"))}, pod("p", "0", x, must(1, v1.LabelTopologyZone)), "", ""},
		"unless it is not to": {[]runtime.Object{node("n1", "8", in("a")), node("n2", "4", in("b"), tainted)}, []runtime.Object{pod("a", "0", x, on("n1"))}, pod("p", "0", x, must(1, v1.LabelTopologyZone, func(c *v1.TopologySpreadConstraint) {
			c.NodeTaintsPolicy = &honor
		})), "n1", ""},
		"only its own version counts": {two, []runtime.Object{pod("a", "0", version("1"), on("n1"))}, pod("p", "5", version("2"), must(1, v1.LabelTopologyZone, func(c *v1.TopologySpreadConstraint) {
			c.MatchLabelKeys = []string{"version"}
		})), "n1", ""},
		"rather to the emptier one": {two, []runtime.Object{pod("a", "0", x, on("n1")), pod("b", "1", on("n2"))}, pod("p", "0", x, spread(v1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: app("x"),
		})), "n2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, append(slices.Clone(tc.nodes), tc.has...)...)
				defer c.stop()
				c.create(tc.pod)
				c.wantNode("p", tc.where)
				if tc.msg != "" {
					c.wantMessage("p", tc.msg)
				}
			})
		})
	}
}

// TestPodsOfAWorkloadAreSpreadByDefault: without constraints of their own, as far as nothing else
// speaks against it.
func TestPodsOfAWorkloadAreSpreadByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"}, Spec: appsv1.ReplicaSetSpec{Selector: app("x")}}
		owned := func(p *v1.Pod) {
			p.Labels = map[string]string{"app": "x"}
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		}
		c := start(t, rs, node("n1", "40"), node("n2", "20"), node("n3", "30"))
		defer c.stop()
		seen := map[string]bool{}
		for i := range 3 {
			name := fmt.Sprintf("p%d", i)
			c.create(pod(name, "100m", owned))
			seen[c.get(name).Spec.NodeName] = true
		}
		if len(seen) != 3 {
			t.Errorf("three pods are on %v", seen)
		}
	})
}

// TestNodesOfOneHostNameCountForThemselves: where host names are only wished for, each node has what is on it, as upstream
// counts. All pods but the first are counted by what has changed.
func TestNodesOfOneHostNameCountForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		twin := func(n *v1.Node) { n.Labels[v1.LabelHostname] = "twin" }
		c := start(t, node("n1", "400", twin), node("n2", "1", twin), node("n3", "1", twin)) // else all would be on n1
		defer c.stop()
		on := map[string]int{}
		for i := range 6 {
			name := fmt.Sprintf("p%d", i)
			c.create(pod(name, "100m", labelled("app", "web"), spread(v1.TopologySpreadConstraint{
				MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: app("web"),
			})))
			on[c.get(name).Spec.NodeName]++
		}
		if on["n1"] != 2 || on["n2"] != 2 || on["n3"] != 2 {
			t.Errorf("the pods are on %v", on)
		}
	})
}

// TestScoresCanBeSwitchedOffAlone: score.disabled used to switch filters off, too.
func TestScoresCanBeSwitchedOffAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := scheduler.DefaultConfig()
		cfg.Profiles[0].Plugins = &configv1.Plugins{Score: configv1.PluginSet{Disabled: []configv1.Plugin{{Name: "*"}}}}
		c := startConfig(t, cfg, same, node("n1", "4", func(n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}
		}))
		defer c.stop()
		c.create(pod("p", "1"))
		c.wantNode("p", "")
	})
}

// TestTwoProfiles: a pod is scheduled by the one that it names, with its arguments.
func TestTwoProfiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := scheduler.DefaultConfig()
		cfg.Profiles = append(cfg.Profiles, scheduler.ProfileConfig{SchedulerName: "packing", Args: map[string]runtime.Object{
			"NodeResourcesFit": &configv1.NodeResourcesFitArgs{ScoringStrategy: &configv1.ScoringStrategy{Type: configv1.MostAllocated}},
		}, Plugins: &configv1.Plugins{Score: configv1.PluginSet{
			Disabled: []configv1.Plugin{{Name: "*"}}, Enabled: []configv1.Plugin{{Name: "NodeResourcesFit"}},
		}}})
		c := startConfig(t, cfg, same, node("n1", "4"), node("n2", "4"), pod("a", "1", on("n1"), func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse("256Mi")
		}))
		defer c.stop()
		c.create(pod("spread", "1"))
		c.create(pod("pack", "1", func(p *v1.Pod) { p.Spec.SchedulerName = "packing" }))
		c.wantNode("spread", "n2")
		c.wantNode("pack", "n1")
	})
}

// TestAFriendThatHadBeenNominatedWakes: when it was bound, it seemed to have been there before.
func TestAFriendThatHadBeenNominatedWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("n1", "1"), pod("low", "1", on("n1")))
		defer c.stop()
		gone := c.graceful()
		c.create(pod("friend", "1", labelled("app", "x"), priority(1)))
		c.settle()
		c.create(pod("p", "0", together(v1.LabelHostname)))
		c.settle()
		c.wantNode("p", "")
		gone("low")
		c.settle()
		c.wantNode("friend", "n1")
		c.wantNode("p", "n1")
	})
}

// TestWhatStoodInTheWayOfAPreemptionWakes: a pod for which there were no resources, and for which no room could be
// made because its friend was only nominated, used to hear only of resources.
func TestWhatStoodInTheWayOfAPreemptionWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := func(minute int64) func(*v1.Pod) {
			return func(p *v1.Pod) { p.Status.StartTime = new(metav1.NewTime(time.Unix(60*minute, 0))) }
		}
		c := start(t, node("n1", "4"),
			pod("old", "2", on("n1"), labelled("app", "x"), since(1)), pod("young", "2", on("n1"), since(2)))
		defer c.stop()
		gone := c.graceful()
		c.create(pod("friend", "2", labelled("app", "x"), priority(2)))
		c.create(pod("p", "2", together(v1.LabelHostname), priority(2)))
		c.wantNode("friend", "")
		c.wantNode("p", "")
		gone("young")
		c.settle()
		c.wantNode("friend", "n1")
		if c.get("old").DeletionTimestamp == nil {
			t.Fatal("p did not hear that its friend was bound: it makes no room for itself")
		}
		gone("old")
		c.settle()
		c.wantNode("p", "n1")
	})
}

// TestAZoneThatGoesWakesWhoWasToBeSpreadOverIt: nobody was told of a node's end.
func TestAZoneThatGoesWakesWhoWasToBeSpreadOverIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := labelled("app", "x")
		c := start(t, node("n1", "0", in("a")), node("n2", "4", in("b")), pod("a", "1", x, on("n2")))
		defer c.stop()
		c.create(pod("p", "1", x, spread(v1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: app("x"),
		})))
		c.settle()
		c.wantNode("p", "")
		if err := c.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.wantNode("p", "n2")
	})
}
