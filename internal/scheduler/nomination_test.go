package scheduler_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

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
