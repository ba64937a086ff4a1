package plugins

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/cache"
	"wherry.dev/internal/scheduler/framework"
)

// TestTallyIsWhatCountingAnewFinds while pods and nodes come, change and go, and is asked now and then.
func TestTallyIsWhatCountingAnewFinds(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	c, snapshot := cache.New(klog.Background()), cache.NewSnapshot(nil)
	parallel := framework.NewParallelizer(4)
	blue := func(n fwk.NodeInfo) (out []share[domain]) {
		for _, p := range n.GetPods() {
			if p.GetPod().Labels["color"] == "blue" {
				out = gather(out, "zone", n.Node(), 1)
			}
		}
		return out
	}
	node := func(i int) *v1.Node {
		zone := fmt.Sprint(dice.IntN(3))
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"zone": zone, v1.LabelTopologyZone: zone}}}
	}
	var all tallies[domain]
	var held, asHeld map[domain]sum
	kept := 0
	for round := range 3000 {
		for range 1 + dice.IntN(3) {
			i := dice.IntN(20)
			uid := types.UID(fmt.Sprint(dice.IntN(60)))
			switch dice.IntN(8) {
			case 0:
				c.SetNode(node(i))
			case 1:
				if dice.IntN(4) == 0 {
					c.RemoveNode(fmt.Sprint("n", i))
				}
			case 2:
				c.RemovePod(uid)
			default:
				p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid}, Spec: v1.PodSpec{NodeName: fmt.Sprint("n", i)}}
				if dice.IntN(2) == 0 {
					p.Labels = map[string]string{"color": "blue"}
				}
				if err := c.SetPod(p); err != nil {
					t.Fatal(err)
				}
			}
		}
		c.Update(snapshot)
		if dice.IntN(3) == 0 {
			continue // nobody asks
		}
		keep := dice.IntN(4) == 0
		got, err := all.get(t.Context(), "blue", keep, snapshot, snapshot.List, parallel, "test", blue)
		if err != nil {
			t.Fatal(err)
		}
		want := tally[domain]{of: blue}
		if err := want.over(t.Context(), snapshot.Nodes(), parallel, "test"); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, want.sums) {
			t.Fatalf("round %d: %v, but it is %v", round, got, want.sums)
		}
		if !maps.Equal(held, asHeld) {
			t.Fatalf("round %d: sums that are kept were %v, and are %v now", round, asHeld, held)
		}
		if keep {
			held, asHeld = got, maps.Clone(got)
		}
		if len(all.kept) > 0 && all.kept[0].order == snapshot.Order() {
			kept++
		}
		other := fmt.Sprint("once ", round) // asked by a pod like no other
		if _, err := all.get(t.Context(), other, false, snapshot, snapshot.List, parallel, "test", blue); err != nil {
			t.Fatal(err)
		}
	}
	if len(all.kept) != 1 || kept < 500 || len(all.once) > maxOnce {
		t.Errorf("%d tallies are kept, brought up to date %d times; %d questions were asked once", len(all.kept), kept, len(all.once))
	}
}
