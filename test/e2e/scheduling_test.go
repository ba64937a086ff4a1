package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAPodWaitsForDevices, and is told for what: its claim, or devices, which no driver offers on a plain node. A pod
// without claims is not bothered.
func TestAPodWaitsForDevices(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("plain"))
	c.await("plain", "ready", ready)
	resources := c.client.ResourceV1()
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	if _, err := resources.DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	one := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	one.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}
	if _, err := resources.ResourceClaimTemplates("default").Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.create(busybox("claims", func(p *v1.Pod) {
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one")}}
	}))
	c.create(busybox("early", func(p *v1.Pod) {
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("absent")}}
	}))
	pod := c.await("claims", "unschedulable", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Reason == v1.PodReasonUnschedulable
	})
	const want = "0/1 nodes are available: 1 cannot allocate all claims. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
	if got := pod.Status.Conditions[0].Message; got != want || pod.Spec.NodeName != "" {
		t.Errorf("on node %q: %s", pod.Spec.NodeName, got)
	}
	if out := c.must("explain", "pod/claims"); !strings.Contains(out, want) || !strings.Contains(out, "would help: free devices on node") {
		t.Errorf("explain says:\n%s", out)
	}
	if out := c.must("explain", "pod/early"); !strings.Contains(out, `could not find ResourceClaim "default/absent"`) {
		t.Errorf("explain says:\n%s", out)
	}
	// A driver offers a device: the pod gets it, and its node says that it cannot prepare it.
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "offer"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "d.example.com", Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1}, AllNodes: new(true),
		Devices: []resourcev1.Device{{Name: "gpu-0"}},
	}}
	if _, err := resources.ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitEvent("claims", "FailedPrepareDynamicResources")
	if p := c.await("claims", "bound", func(p *v1.Pod) bool { return p != nil && p.Spec.NodeName != "" }); ready(p) {
		t.Error("a pod runs without its device")
	}
	events, err := c.client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=plain"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		t.Errorf("a pod that lacks nothing is warned: %s: %s", e.Reason, e.Message)
	}
}

// TestAMoreImportantPodGetsItsPlace: the least important one leaves with the time that it asks for,
// and whoever must not be beside it stays away.
func TestAMoreImportantPodGetsItsPlace(t *testing.T) {
	c := startCluster(t)
	node, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(node.Items) != 1 {
		t.Fatal(err, len(node.Items))
	}
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 1000}
	if _, err := c.client.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	most := node.Items[0].Status.Allocatable.Cpu().MilliValue() * 2 / 3
	asks := func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(most, resource.DecimalSI)}
	}
	c.create(busybox("low", asks, script("trap 'sleep 1; exit 0' TERM; sleep 3600 & wait")))
	c.await("low", "ready", ready)
	// The class is read by admission from what it has watched, so it may not know it yet.
	urgent := busybox("urgent", asks, func(p *v1.Pod) { p.Spec.PriorityClassName = "urgent" })
	c.until("the pod of the new class is not taken", func() bool {
		_, err := c.client.CoreV1().Pods("default").Create(t.Context(), urgent, metav1.CreateOptions{})
		return err == nil
	})
	leaving := c.await("low", "preempted", func(p *v1.Pod) bool { return p == nil || p.DeletionTimestamp != nil })
	if leaving != nil && !hasCondition(leaving, v1.DisruptionTarget, "PreemptionByScheduler") {
		t.Errorf("conditions of the victim: %+v", leaving.Status.Conditions)
	}
	c.await("urgent", "ready", ready)
	c.await("low", "gone", func(p *v1.Pod) bool { return p == nil })
	c.until("the victim's event is missing", func() bool {
		return strings.Contains(c.must("kubectl", "get", "events"), "Preempted by pod "+string(c.get("urgent").UID))
	})
	if got := c.get("urgent").Status.NominatedNodeName; got != "" {
		t.Errorf("a pod that has its node is still nominated for %s", got)
	}

	c.create(busybox("apart", func(p *v1.Pod) {
		p.Labels = map[string]string{"app": "apart"}
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "apart"}},
		}}}}
	}))
	c.await("apart", "ready", ready)
	second := c.get("apart").DeepCopy()
	second.ObjectMeta = metav1.ObjectMeta{Name: "second", Labels: second.Labels}
	second.Spec.NodeName, second.Status = "", v1.PodStatus{}
	c.create(second)
	c.await("second", "unschedulable", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.Conditions) > 0 && strings.Contains(p.Status.Conditions[0].Message, "anti-affinity rules")
	})
	c.must("kubectl", "delete", "pod", "apart", "--now")
	c.await("second", "ready", ready)
}

func hasCondition(p *v1.Pod, kind v1.PodConditionType, reason string) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind && c.Reason == reason {
			return true
		}
	}
	return false
}

// TestExplainSaysWhatWouldHelp a pod that fits on no node, and how the node of another was chosen.
func TestExplainSaysWhatWouldHelp(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("plain"))
	c.await("plain", "ready", ready)
	if out := c.must("explain", "pod/plain", "--why-node"); !strings.Contains(out, "It is the only node.") {
		t.Error(out)
	}
	c.create(busybox("huge", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1000")}
	}))
	c.await("huge", "unschedulable", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Reason == v1.PodReasonUnschedulable
	})
	out := c.must("explain", "pod/huge")
	for _, want := range []string{"Insufficient cpu (NodeResourcesFit)", "would help: a larger node:", "too little even when it is empty", "waits for: Node/Add"} {
		if !strings.Contains(out, want) {
			t.Errorf("explain does not say %q:\n%s", want, out)
		}
	}
}
