package scheduler_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler"
	"wherry.dev/internal/scheduler/framework"
)

// gate is a Permit plugin that lets pods wait.
type gate struct {
	h    fwk.Handle
	wait time.Duration
}

func (*gate) Name() string { return "Gate" }

func (g *gate) Permit(context.Context, fwk.CycleState, *v1.Pod, string) (*fwk.Status, time.Duration) {
	return fwk.NewStatus(fwk.Wait), g.wait
}

func (*gate) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}}}, nil
}

func startGate(t *testing.T, objs ...runtime.Object) (*cluster, *gate) {
	t.Helper()
	g := &gate{wait: time.Minute}
	cfg := scheduler.DefaultConfig()
	cfg.Registry = framework.Registry{"Gate": func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		g.h = h
		return g, nil
	}}
	cfg.Profiles[0].Plugins = &configv1.Plugins{Permit: configv1.PluginSet{Enabled: []configv1.Plugin{{Name: "Gate"}}}}
	return startConfig(t, cfg, same, objs...), g
}

// TestPodsWaitToBeBound: a pod that waits has its place; the next one is scheduled meanwhile.
func TestPodsWaitToBeBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := startGate(t, node("n1", "2"))
		defer c.stop()
		c.create(pod("a", "1"))
		c.create(pod("b", "1"))
		c.create(pod("none", "1"))
		var waiting []string
		g.h.IterateOverWaitingPods(func(w fwk.WaitingPod) {
			waiting = append(waiting, w.GetPod().Name+" on "+w.GetPod().Spec.NodeName)
		})
		slices.Sort(waiting)
		if !slices.Equal(waiting, []string{"a on n1", "b on n1"}) {
			t.Fatalf("there wait %v", waiting)
		}
		g.h.GetWaitingPod("a").Allow("Gate")
		synctest.Wait()
		c.wantNode("a", "n1")
		c.wantNode("b", "")
		c.wantMessage("none", "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")
		// The one that is rejected gives its place to the one that found none.
		g.h.GetWaitingPod("b").Reject("Gate", "not today")
		synctest.Wait()
		c.wantMessage("b", "0/1 nodes are available: 1 not today.")
		if g.h.GetWaitingPod("none") == nil {
			t.Error("the place of the rejected pod stays empty")
		}
		// One that is deleted waits no more.
		c.delete("none")
		if g.h.GetWaitingPod("none") != nil {
			t.Error("a deleted pod waits")
		}
	})
}

func TestNobodyWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := startGate(t, node("n1", "2"))
		defer c.stop()
		c.create(pod("a", "1"))
		time.Sleep(61 * time.Second)
		synctest.Wait()
		c.wantMessage("a", "0/1 nodes are available: 1 rejected due to timeout after waiting 1m0s at plugin Gate.")
	})
}

// TestAPodThatIsNotBoundYetIsPreemptedInMemory: it goes back to the queue, and nobody deletes it.
func TestAPodThatIsNotBoundYetIsPreemptedInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := startGate(t, node("n1", "1"))
		defer c.stop()
		c.create(pod("low", "1"))
		if g.h.GetWaitingPod("low") == nil {
			t.Fatal("it does not wait")
		}
		c.create(pod("high", "1", priority(1)))
		c.settle()
		if got := c.names(); !slices.Equal(got, []string{"high", "low"}) {
			t.Errorf("there are %v", got)
		}
		if w := g.h.GetWaitingPod("high"); w == nil {
			t.Error("the one with the higher priority did not get the place")
		}
	})
}

// undecided cannot say whether room can be made, until it is asked for the third time.
type undecided struct{ asked int }

func (*undecided) Name() string { return "Undecided" }

func (u *undecided) PostFilter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if u.asked++; u.asked < 3 {
		return nil, fwk.AsStatus(errors.New("the oracle is silent"))
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, "no room")
}

// TestAPodForWhichRoomCannotBeSoughtIsUnschedulable: it was told of a SchedulerError, which no autoscaler acts on. It is
// tried again all the same.
func TestAPodForWhichRoomCannotBeSoughtIsUnschedulable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &undecided{}
		cfg := scheduler.DefaultConfig()
		cfg.Registry = framework.Registry{"Undecided": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return u, nil }}
		cfg.Profiles[0].Plugins = &configv1.Plugins{PostFilter: configv1.PluginSet{Enabled: []configv1.Plugin{{Name: "Undecided"}}}}
		c := startConfig(t, cfg, same, node("n1", "1"))
		defer c.stop()
		c.create(pod("p", "2"))
		c.wantMessage("p", "0/1 nodes are available: 1 Insufficient cpu. the oracle is silent")
		if c.said(v1.PodReasonUnschedulable) == "" {
			t.Error("it is not told that the pod is unschedulable")
		}
		c.after(time.Minute)
		c.wantMessage("p", "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: "+
			"1 Preemption is not helpful for scheduling., no room")
		if u.asked != 3 {
			t.Errorf("it was asked %d times", u.asked)
		}
	})
}
