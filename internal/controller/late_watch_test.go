package controller_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/nodelifecycle"
)

// TestALateWatchSilencesNobody: a node that renews its lease is not silent, if only the watch of leases is late. It was
// marked Unknown, and its pods were evicted.
func TestALateWatchSilencesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n"},
			Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}},
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: "n", ResourceVersion: "1"}}
		var renews atomic.Bool
		renews.Store(true)
		client, stop := run(t, func(c *fake.Clientset, f informers.SharedInformerFactory) (controller.Controller, error) {
			version := 1
			c.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				live := lease.DeepCopy()
				if renews.Load() {
					version++
				} else {
					version = 1
				}
				live.ResourceVersion = strconv.Itoa(version)
				return true, live, nil
			})
			return nodelifecycle.New(c, f, nodelifecycle.Defaults)
		}, node, lease, steady("other"))
		defer stop()
		defer keepSpeaking(t, client, "other")()
		want := func(status v1.ConditionStatus) {
			t.Helper()
			synctest.Wait()
			n, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := n.Status.Conditions[0].Status; got != status {
				t.Errorf("Ready is %s, want %s", got, status)
			}
		}
		time.Sleep(4 * nodelifecycle.GracePeriod)
		want(v1.ConditionTrue)
		renews.Store(false)
		time.Sleep(2 * nodelifecycle.GracePeriod)
		want(v1.ConditionUnknown)
	})
}
