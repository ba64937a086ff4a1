package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/test/images"
)

// TestAGangStartsTogetherOrNotAtAll: on a node that serves pod groups, pods of a gang wait until there are enough of
// them and all of them fit; the group says how it went, and outlives its pods.
func TestAGangStartsTogetherOrNotAtAll(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.flags = append(c.flags, "--apiserver-arg=feature-gates=GenericWorkload=true")
	c.up()
	c.must("kubectl", "apply", "-f", c.file(`
apiVersion: scheduling.k8s.io/v1beta1
kind: Workload
metadata: {name: training}
spec:
  podGroupTemplates:
  - {name: workers, schedulingPolicy: {gang: {minCount: 3}}}
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: small}
spec:
  schedulingPolicy: {gang: {minCount: 3}}
  workloadRef: {workloadName: training, templateName: workers}
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: big}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
`))
	of := func(group string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group} }
	}
	node, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(node.Items) != 1 {
		t.Fatal(err)
	}
	most := resource.NewMilliQuantity(node.Items[0].Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	large := func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *most}
	}
	c.create(busybox("small-0", of("small")))
	c.create(busybox("small-1", of("small")))
	c.create(busybox("big-0", of("big"), large))
	c.create(busybox("big-1", of("big"), large))
	c.explains("small-1", []string{"Pending", "there are 2 of 3"})
	c.until("the big gang fits", func() bool { return strings.Contains(c.kubectl("get", "podgroups", "big"), "Unschedulable") })
	for _, name := range []string{"small-0", "small-1", "big-0", "big-1"} {
		if p := c.get(name); p.Spec.NodeName != "" {
			t.Errorf("%s has a node", name)
		}
	}

	c.create(busybox("small-2", of("small")))
	for _, name := range []string{"small-0", "small-1", "small-2"} {
		c.await(name, "ready", ready)
	}
	c.until("the group is not scheduled", func() bool {
		fields := strings.Fields(c.kubectl("get", "podgroups", "small", "--no-headers"))
		return len(fields) == 5 && strings.Join(fields[:4], " ") == "small Gang training Scheduled"
	})

	// The group is kept while pods of it run, and goes with the last of them.
	c.kubectl("delete", "podgroup", "small", "--wait=false")
	c.kubectl("delete", "pod", "small-0", "small-1", "--grace-period=1")
	if out := c.kubectl("get", "podgroup", "small", "-o", "jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}"); !strings.Contains(out, "podgroup-protection") || out[0] == ' ' {
		t.Errorf("a group with a pod: %s", out)
	}
	c.kubectl("delete", "pod", "small-2", "--grace-period=1")
	c.kubectl("wait", "podgroup/small", "--for=delete", "--timeout="+patience.String())
	c.kubectl("delete", "pod", "big-0", "big-1")
}
