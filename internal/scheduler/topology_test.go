package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
)

const rack = "example.com/rack"

func inRack(name string) func(*v1.Node) { return func(n *v1.Node) { n.Labels[rack] = name } }

// oneRack makes a group want nodes of one rack.
func oneRack(g *schedulingv1beta1.PodGroup) {
	g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
		Topology: []schedulingv1beta1.TopologyConstraint{{Key: rack}},
	}
}

func placing() scheduler.Config {
	cfg := scheduler.DefaultConfig()
	cfg.PodGroups, cfg.Topology = true, true
	return cfg
}

func TestAGroupOfOneDomain(t *testing.T) {
	a, b, d := pod("a", "1", member("g"), priority(5)), pod("b", "1", member("g"), priority(5)), pod("d", "1", member("g"), priority(5))
	racks := []runtime.Object{node("n1", "1", inRack("x")), node("n2", "1", inRack("y")), node("n3", "1", inRack("y")), node("n4", "9")}
	for name, tc := range map[string]struct {
		has   []runtime.Object
		pods  []*v1.Pod
		where string // the nodes of the pods
		told  string // the group's condition
	}{
		"where all have room": {append(racks, gangOf("g", 2, 5, oneRack)), []*v1.Pod{a, b}, "n2 n3", "True Scheduled: "},
		"in no other": {append(racks, gangOf("g", 3, 5, oneRack)), []*v1.Pod{a, b, d}, "",
			"False Unschedulable: 0/2 placements are available, first placement status: 1 pod(s) of 3 could be scheduled, minCount is 3: " +
				"0/1 nodes are available: 1 Insufficient cpu. pod group preemption: No preemption victims found for incoming preemptor"},
		"without the label": {[]runtime.Object{node("n4", "9"), gangOf("g", 2, 5, oneRack)}, []*v1.Pod{a, b}, "",
			"False Unschedulable: 0/1 nodes are available: no feasible placements found."},
		"with those that run": {append(racks, gangOf("g", 2, 5, oneRack), pod("run", "1", on("n3"), member("g"), priority(5))), []*v1.Pod{a}, "n2", "True Scheduled: "},
		"only with those that run": {append(racks, gangOf("g", 1, 5, oneRack), pod("run", "1", on("n1"), member("g"), priority(5))), []*v1.Pod{a}, "",
			"False Unschedulable: 0 pod(s) of 1 could be scheduled: 0/1 nodes are available: 1 Insufficient cpu. " +
				"pod group preemption: No preemption victims found for incoming preemptor"},
		"where more have room": {append(racks, gangOf("g", 1, 5, oneRack)), []*v1.Pod{a, b, d}, "n2 n3", "True Scheduled: "},
		"a basic one, too":     {append(racks, gangOf("g", 0, 5, oneRack)), []*v1.Pod{a, b}, "n2 n3", "True Scheduled: "},
		"where it fills the nodes": {[]runtime.Object{
			node("n1", "2", inRack("x")), node("n2", "1", inRack("y")), gangOf("g", 1, 5, oneRack),
		}, []*v1.Pod{a}, "n2", "True Scheduled: "},
		"one that does not care": {append(racks, gangOf("g", 3, 5)), []*v1.Pod{a, b, d}, "n4 n4 n4", "True Scheduled: "},
		"apart from each other": {[]runtime.Object{
			node("n1", "2", inRack("x")), node("n2", "1", inRack("y")), node("n3", "1", inRack("y")), gangOf("g", 2, 5, oneRack),
		}, []*v1.Pod{
			pod("a", "1", member("g"), priority(5), labelled("app", "x"), apart(v1.LabelHostname)),
			pod("b", "1", member("g"), priority(5), labelled("app", "x"), apart(v1.LabelHostname)),
		}, "n2 n3", "True Scheduled: "},
		"where it can preempt": {[]runtime.Object{
			node("n1", "1", inRack("x")), node("n2", "1", inRack("y")), node("n3", "1", inRack("y")), pod("low", "1", on("n3")),
			pod("high", "1", on("n1"), priority(9)), gangOf("g", 2, 5, oneRack),
		}, []*v1.Pod{a, b}, "n2 n3", "True Scheduled: "},
		"a basic one where it can preempt": {[]runtime.Object{
			node("n1", "1", inRack("x")), node("n2", "1", inRack("y")), node("n3", "1", inRack("y")), pod("low", "1", on("n3")),
			pod("other", "1", on("n2"), priority(9)), pod("high", "1", on("n1"), priority(9)), gangOf("g", 0, 5, oneRack),
		}, []*v1.Pod{a}, "n3", "True Scheduled: "},
		"where the others of a gang run, if it can preempt there": {[]runtime.Object{
			node("n1", "1", inRack("x")), node("n2", "1", inRack("y")), node("n3", "1", inRack("y")), pod("low", "1", on("n3")),
			pod("run", "1", on("n2"), member("g"), priority(5)), gangOf("g", 1, 5, oneRack),
		}, []*v1.Pod{a}, "n3", "True Scheduled: "},
		"not where those of another domain keep it away": {[]runtime.Object{
			node("n1", "9", inRack("x"), in("1")), node("n2", "1", inRack("y"), in("1")), node("n3", "9", inRack("z"), in("2")),
			pod("loner", "1", on("n1"), apart(v1.LabelTopologyZone)), gangOf("g", 1, 5, oneRack),
		}, []*v1.Pod{pod("a", "1", member("g"), priority(5), labelled("app", "x"))}, "n3", "True Scheduled: "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				isGroup := func(o runtime.Object) bool { _, ok := o.(*schedulingv1beta1.PodGroup); return ok }
				c := startConfig(t, placing(), same, slices.DeleteFunc(slices.Clone(tc.has), isGroup)...)
				defer c.stop()
				for _, p := range tc.pods {
					c.create(p.DeepCopy())
				}
				g, _ := tc.has[slices.IndexFunc(tc.has, isGroup)].(*schedulingv1beta1.PodGroup) // all of its pods are there
				if _, err := c.client.SchedulingV1beta1().PodGroups("default").Create(t.Context(), g, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				c.settle()
				c.settle()
				var where []string
				for _, p := range tc.pods {
					if node := c.get(p.Name).Spec.NodeName; node != "" {
						where = append(where, node)
					}
				}
				slices.Sort(where)
				if got := strings.Join(where, " "); got != tc.where {
					t.Errorf("the pods are on %q, want %q", got, tc.where)
				}
				c.wantCondition(tc.told)
			})
		})
	}
}

// TestADomainWakesTheGroup: a node comes, gets the label, or pods that pinned the group to their domain go.
func TestADomainWakesTheGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		has  []runtime.Object
		help func(c *cluster)
	}{
		"a node comes": {nil, func(c *cluster) {
			if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), node("n2", "2", inRack("x")), metav1.CreateOptions{}); err != nil {
				c.t.Fatal(err)
			}
		}},
		"a node gets the label": {nil, func(c *cluster) {
			if _, err := c.client.CoreV1().Nodes().Update(c.t.Context(), node("n1", "2", inRack("x")), metav1.UpdateOptions{}); err != nil {
				c.t.Fatal(err)
			}
		}},
		"a pod of the group goes": {[]runtime.Object{
			node("n2", "2", inRack("x")), node("n3", "1", inRack("y")), pod("run", "1", on("n3"), member("g")),
		}, func(c *cluster) { c.delete("run") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startConfig(t, placing(), same, append(tc.has, node("n1", "2"), gangOf("g", 2, 0, oneRack))...)
				defer c.stop()
				c.create(pod("a", "1", member("g")))
				c.create(pod("b", "1", member("g")))
				c.settle()
				if n := c.bound("a", "b"); n != 0 {
					t.Fatalf("%d are bound", n)
				}
				tc.help(c)
				c.settle()
				if n := c.bound("a", "b"); n != 2 {
					t.Errorf("%d are bound: %s", n, c.condition())
				}
			})
		})
	}
}

// pairs is a plugin of somebody's own that generates and scores placements: pairs of nodes, the last ones first.
type pairs struct{}

func (pairs) Name() string { return "Pairs" }

func (pairs) GeneratePlacements(_ context.Context, _ fwk.PodGroupCycleState, _ fwk.PodGroupInfo, parent *fwk.Placement) (*fwk.GeneratePlacementsResult, *fwk.Status) {
	out := &fwk.GeneratePlacementsResult{}
	for i := 0; i+1 < len(parent.Nodes); i += 2 {
		out.Placements = append(out.Placements, &fwk.Placement{Name: fmt.Sprint(i), Nodes: parent.Nodes[i : i+2]})
	}
	return out, nil
}

func (pairs) ScorePlacement(_ context.Context, state fwk.PlacementCycleState, _ fwk.PodGroupInfo, placed *fwk.PodGroupAssignments) (int64, *fwk.Status) {
	for _, a := range placed.ProposedAssignments {
		if a.GetCycleState().GetPlacementCycleState() != state || a.GetCycleState().GetPodGroupSchedulingCycle() != state.GetPodGroupSchedulingCycle() {
			return 0, fwk.NewStatus(fwk.Error, "the pods do not share the placement's state")
		}
	}
	var score int64
	_, err := fmt.Sscan(placed.Name, &score)
	return score, fwk.AsStatus(err)
}

func (pairs) PlacementScoreExtensions() fwk.PlacementScoreExtensions { return nil }

func TestPlacementsOfAPluginOfOnesOwn(t *testing.T) {
	start := func(t *testing.T, plugins *configv1.Plugins) (scheduler.Config, error) {
		t.Helper()
		cfg := placing()
		cfg.Registry = framework.Registry{"Pairs": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return pairs{}, nil }}
		cfg.Profiles[0].Plugins = plugins
		_, err := scheduler.New(t.Context(), fake.NewClientset(), cfg)
		return cfg, err
	}
	own := configv1.PluginSet{Enabled: []configv1.Plugin{{Name: "Pairs"}}}
	if _, err := start(t, &configv1.Plugins{PlacementGenerate: own}); err == nil || !strings.Contains(err.Error(), "2 plugins generate placements, but at most one can") {
		t.Errorf("beside the default one: %v", err)
	}
	only := own
	only.Disabled = []configv1.Plugin{{Name: "*"}}
	cfg, err := start(t, &configv1.Plugins{PlacementGenerate: only, PlacementScore: only})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := startConfig(t, cfg, same, node("n1", "1"), node("n2", "1"), node("n3", "1"), node("n4", "1"), node("n5", "9"), gangOf("g", 2, 0))
		defer c.stop()
		c.create(pod("a", "1", member("g")))
		c.create(pod("b", "1", member("g")))
		c.settle()
		got := []string{c.get("a").Spec.NodeName, c.get("b").Spec.NodeName}
		slices.Sort(got)
		if !slices.Equal(got, []string{"n3", "n4"}) {
			t.Errorf("the pods are on %v, not on the pair with the highest score: %s", got, c.condition())
		}
	})
	cfg = scheduler.DefaultConfig()
	cfg.PodGroups = true
	cfg.Profiles[0].Plugins = &configv1.Plugins{MultiPoint: configv1.PluginSet{Enabled: []configv1.Plugin{{Name: "TopologyPlacementGenerator"}}}}
	if _, err := scheduler.New(t.Context(), fake.NewClientset(), cfg); err == nil || !strings.Contains(err.Error(), "it takes the feature gate TopologyAwareWorkloadScheduling") {
		t.Errorf("without the gate: %v", err)
	}
	cfg = scheduler.DefaultConfig()
	cfg.Topology = true
	if _, err := scheduler.New(t.Context(), fake.NewClientset(), cfg); err == nil || !strings.Contains(err.Error(), "GenericWorkload=true") {
		t.Errorf("without the gate of groups: %v", err)
	}
}
