package podworker

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
)

func named(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid}}
}

// A kubelet knows a static pod that was replaced while it was away only as an orphan:
// the new one was started beside it.
func TestAStaticPodWaitsForAnOrphanOfItsName(t *testing.T) {
	table := NewTable(Deps{Node: func() podplan.Node { return podplan.Node{} }})
	table.Adopt(named("old"))
	table.Set(named("new"), true)
	if table.waiting["new"] != "old" {
		t.Errorf("waiting: %v", table.waiting)
	}
	table.Set(named("old"), false) // it is somebody else's
	if len(table.waiting) > 0 {
		t.Errorf("still waiting: %v", table.waiting)
	}
}
