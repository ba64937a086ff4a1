package scheduler

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/cache"
	"wherry.dev/internal/scheduler/framework"
)

// TestWhyNodesAreNotAvailable: what a search has found is kept as it is, beside what others say of single nodes.
func TestWhyNodesAreNotAvailable(t *testing.T) {
	nodes := make([]fwk.NodeInfo, 4)
	for i, name := range []string{"a", "b", "c", "d"} {
		nodes[i] = framework.NewNodeInfo(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	full := fwk.NewStatus(fwk.Unschedulable, "full", "busy").WithPlugin("Fit")
	tainted := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "tainted").WithPlugin("Taint")
	fit := newFitError(5)
	fit.reject("d", fwk.NewStatus(fwk.Unschedulable, "disliked").WithPlugin("Extender"))
	fit.rejectLooked(nodes, []*fwk.Status{full, tainted, full, nil})
	fit.exclude(nil)
	want := "0/5 nodes are available: 1 disliked, 1 node(s) didn't satisfy plugin(s) [], 1 tainted, 2 busy, 2 full."
	if got := fit.Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !fit.plugins.HasAll("Fit", "Taint", "Extender") {
		t.Errorf("rejected by %v", fit.plugins)
	}
	for name, want := range map[string]fwk.Code{
		"a": fwk.Unschedulable, "b": fwk.UnschedulableAndUnresolvable, "d": fwk.Unschedulable, "e": fwk.UnschedulableAndUnresolvable,
	} {
		if got := fit.Get(name).Code(); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	s := cache.NewSnapshot(nil)
	c := cache.New(klog.Background())
	for _, n := range nodes {
		c.SetNode(n.Node())
	}
	c.Update(s)
	found, err := fit.NodesForStatusCode(s, fwk.Unschedulable)
	if err != nil || len(found) != 3 {
		t.Errorf("%d nodes, %v", len(found), err)
	}
	plain := newFitError(4)
	plain.rejectLooked(s.Nodes(), []*fwk.Status{full, tainted, full, tainted})
	if found, err = plain.NodesForStatusCode(s, fwk.Unschedulable); err != nil || len(found) != 2 || found[1].Node().Name != "c" {
		t.Errorf("%d nodes, %v", len(found), err)
	}
}
