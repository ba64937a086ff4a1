package e2e

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A pod that waited for room used to be bound as soon as room appeared, and refused by the node
// with OutOfcpu, seven times out of ten.
func TestRoomThatAppearsIsGiven(t *testing.T) {
	c := startCluster(t)
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	most := nodes.Items[0].Status.Allocatable.Cpu().MilliValue() * 3 / 4
	deaf := func(p *v1.Pod) {
		script("trap '' TERM; while true; do sleep 1; done")(p)
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(most, resource.DecimalSI)}
	}
	before := "lo0"
	c.create(busybox(before, deaf))
	c.await(before, "ready", ready)
	for i := range 5 {
		next := fmt.Sprintf("hi%d", i)
		c.create(busybox(next, deaf))
		c.await(next, "unschedulable", func(p *v1.Pod) bool {
			return p != nil && len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Reason == v1.PodReasonUnschedulable
		})
		c.kubectl("delete", "pod", before, "--wait=false")
		c.await(next, "ready", func(p *v1.Pod) bool {
			if p != nil && p.Status.Phase == v1.PodFailed {
				t.Fatalf("%s", describe(p))
			}
			return ready(p)
		})
		before = next
	}
	c.delete(before)
}
