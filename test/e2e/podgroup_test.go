package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// TestAGangPreemptsInItsDomain: a more important gang makes room for all of its pods; a group that is to be disrupted as a
// whole ends as one; pods of a group that wants one domain go where there is one.
func TestAGangPreemptsInItsDomain(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.flags = append(c.flags, "--apiserver-arg=feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true")
	c.up()
	c.must("kubectl", "apply", "-f", c.file(`
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: old}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  disruptionMode: {all: {}}
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: new}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  priorityClassName: urgent
  schedulingConstraints: {topology: [{key: example.com/rack}]}
`))
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatal(err)
	}
	// of returns a pod of the group that asks for so many per cent of the node's CPU.
	of := func(group string, percent int64) func(*v1.Pod) {
		cpu := resource.NewMilliQuantity(nodes.Items[0].Status.Allocatable.Cpu().MilliValue()*percent/100, resource.DecimalSI)
		return func(p *v1.Pod) {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *cpu}
			p.Spec.TerminationGracePeriodSeconds = new(int64(1))
		}
	}
	urgent := func(p *v1.Pod) { p.Spec.PriorityClassName = "urgent" }
	for _, name := range []string{"old-0", "old-1"} {
		c.create(busybox(name, of("old", 20), script(loop)))
	}
	for _, name := range []string{"old-0", "old-1"} {
		c.await(name, "ready", ready)
	}
	for _, name := range []string{"new-0", "new-1"} {
		c.create(busybox(name, of("new", 40), urgent, script(loop)))
	}
	c.until("the new gang has no domain", func() bool {
		return strings.Contains(c.kubectl("describe", "podgroup", "new"), "no feasible placements found")
	})
	c.explains("new-0", []string{"Pending", "no feasible placements found"})
	if p := c.get("old-0"); p.DeletionTimestamp != nil {
		t.Error("a pod was preempted for a gang that has no domain")
	}
	c.kubectl("label", "node", nodes.Items[0].Name, "example.com/rack=a")
	for _, name := range []string{"new-0", "new-1"} {
		c.await(name, "ready", ready)
	}
	for _, name := range []string{"old-0", "old-1"} {
		if _, err := c.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s of a group that is disrupted as a whole: %v", name, err)
		}
	}
	if out := c.kubectl("get", "podgroup", "old", "-o", `jsonpath={.status.conditions[?(@.type=="DisruptionTarget")].reason}`); out != "PreemptionByScheduler" {
		t.Errorf("the preempted group says %q", out)
	}
	if out := c.kubectl("get", "events", "--field-selector=reason=Preempted"); strings.Count(out, "Preempted by podgroup ") != 2 {
		t.Errorf("events: %s", out)
	}
}
