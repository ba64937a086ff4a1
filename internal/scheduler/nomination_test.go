package scheduler_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
)

// unwritten keeps nominations from being written: for a while, they are known to the scheduler alone.
func (c *cluster) unwritten() {
	c.client.PrependReactor("patch", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		p, ok := a.(ktesting.PatchAction)
		return ok && strings.Contains(string(p.GetPatch()), "nominatedNodeName"), nil, errors.New("the API server is busy")
	})
}

// TestRoomIsFreeWhenWhoeverItWasMadeForIsGone, also if no nomination was written: nobody woke those who kept off the room.
func TestRoomIsFreeWhenWhoeverItWasMadeForIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("n1", "2"), pod("low", "1", on("n1")))
		defer c.stop()
		c.unwritten()
		c.graceful()
		c.create(pod("large", "2", priority(5)))
		c.settle()
		if c.get("low").DeletionTimestamp == nil || c.get("large").Status.NominatedNodeName != "" {
			t.Fatal("nobody is preempted, or everybody knows for whom")
		}
		c.create(pod("small", "1", priority(4)))
		c.settle()
		c.wantNode("small", "")
		c.delete("large")
		c.settle()
		c.wantNode("small", "n1")
	})
}

// TestRoomIsFreeWhenWhoeverItWasMadeForCannotHaveIt, without anything else that would wake those who kept off.
func TestRoomIsFreeWhenWhoeverItWasMadeForCannotHaveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, node("n1", "2"), pod("low", "1", on("n1")))
		defer c.stop()
		c.unwritten()
		c.graceful()
		c.create(pod("large", "2", priority(5), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{v1.LabelHostname: "n1"} }))
		c.settle()
		c.create(pod("small", "1", priority(4)))
		c.settle()
		c.wantNode("small", "")
		n := node("n1", "2")
		n.Labels[v1.LabelHostname] = "other"
		if _, err := c.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.wantNode("small", "")
		// It is tried again because it has changed itself, and does not fit the node any more.
		large := c.get("large")
		large.Labels = map[string]string{"changed": "yes"}
		if _, err := c.client.CoreV1().Pods("default").Update(t.Context(), large, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.settle()
		c.wantNode("large", "")
		c.wantNode("small", "n1")
	})
}
