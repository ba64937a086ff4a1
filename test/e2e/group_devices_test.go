package e2e

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/test/images"
)

// TestAGangSharesADevice: its pods see the one that was made theirs from a template, which is the group's as long as that
// is there, and comes back with it; a taint of the device ends all of them.
func TestAGangSharesADevice(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.flags = append(c.flags, "--apiserver-arg=feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true")
	c.up()
	d := newDeviceDriver(c)
	d.offer()
	d.start()
	groups := c.client.SchedulingV1beta1().PodGroups("default")
	group := func() {
		t.Helper()
		g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}}
		g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: 2}
		g.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one")}}
		if _, err := groups.Create(t.Context(), g, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	member := func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")} }
	gang := func() {
		t.Helper()
		for _, name := range []string{"a", "b"} {
			c.create(busybox(name, member, withDevice))
		}
		for _, name := range []string{"a", "b"} {
			c.await(name, "ready", ready)
		}
	}
	group()
	gang()
	c.create(busybox("alone", withDevice))
	c.await("alone", "ready", ready)
	a, b, alone := c.gpus("a"), c.gpus("b"), c.gpus("alone")
	if a == "" || a != b || alone == "" || alone == a {
		t.Errorf("the gang's pods see %q and %q, the other one %q", a, b, alone)
	}
	d.holds(2)

	// One pod of it comes again, with the same device; the node's process is killed meanwhile.
	c.delete("b")
	c.await("b", "gone", func(p *v1.Pod) bool { return p == nil })
	c.killDaemon()
	d.stop()
	c.up()
	d.start()
	c.create(busybox("b", member, withDevice))
	c.await("b", "ready", ready)
	if again := c.gpus("b"); again != a {
		t.Errorf("a pod of the gang has %q when it comes again, the other one %q", again, a)
	}

	// The group outlives its pods, and its device with it.
	c.delete("a")
	c.delete("b")
	d.holds(1)
	c.create(busybox("waits", withDevice))
	c.awaitEvent("waits", "FailedScheduling")
	if err := groups.Delete(t.Context(), "g", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("waits", "ready", ready)
	if got := c.gpus("waits"); got != a {
		t.Errorf("a pod has %q after the group, which had %q", got, a)
	}
	c.delete("waits")
	c.await("waits", "gone", func(p *v1.Pod) bool { return p == nil })

	group()
	gang()
	rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "broken"}}
	rule.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{Driver: &d.name, Device: new(c.gpus("a"))}
	rule.Spec.Taint = resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute}
	if _, err := c.client.ResourceV1().DeviceTaintRules().Create(t.Context(), rule, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		c.await(name, "evicted", func(p *v1.Pod) bool { return p == nil })
	}
	c.await("alone", "still ready", ready)
	c.delete("alone")
	if err := groups.Delete(t.Context(), "g", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	left := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left = c.must("kubectl", "get", "resourceclaims,podgroups,pods", "-o", "name"); strings.TrimSpace(left) == "" {
			d.holds(0)
			return
		}
	}
	t.Errorf("left behind: %s", left)
}
