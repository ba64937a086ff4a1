package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// withPodGroups is a change of a test's configuration.
func withPodGroups(c *Config) { c.FeatureGates = map[string]bool{"kube:GenericWorkload": true} }

func member(name, group string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers:      []corev1.Container{{Name: "c", Image: "i"}},
		SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &group},
	}}
}

// Without the gate there are no groups, and pods do not have any, even if somebody asks for the API.
func TestNoPodGroupsWithoutTheGate(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir, without(t, "scheduling.k8s.io/v1beta1=true"))
	c := admin(t, s)
	answers(t, c, map[string]int{"/apis/scheduling.k8s.io/v1beta1": 404, "/apis/scheduling.k8s.io/v1beta1/podgroups": 404, "/apis/scheduling.k8s.io/v1": 200})
	if s.Serves(schedulingv1beta1.SchemeGroupVersion.WithResource("podgroups")) {
		t.Error("it serves pod groups")
	}
	makeAccount(t, s)
	p, err := c.CoreV1().Pods("default").Create(t.Context(), member("p", "g"), metav1.CreateOptions{})
	if err != nil || p.Spec.SchedulingGroup != nil {
		t.Errorf("%v, %+v", err, p)
	}
	stop()

	s, stop = run(t, dir, withPodGroups, without(t, "scheduling.k8s.io/v1beta1=false"))
	answers(t, admin(t, s), map[string]int{"/apis/scheduling.k8s.io/v1beta1": 404})
	stop()
}

// TestPreemptionPoliciesOfPodGroups: with their gate, a group has that of its class, and no other.
func TestPreemptionPoliciesOfPodGroups(t *testing.T) {
	s, stop := run(t, t.TempDir(), withPodGroups, func(c *Config) { c.FeatureGates["kube:PodGroupPreemptionPolicy"] = true })
	defer stop()
	c, ctx := admin(t, s), t.Context()
	for name, policy := range map[string]*corev1.PreemptionPolicy{"meek": new(corev1.PreemptNever), "usual": nil} {
		pc := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: 10, PreemptionPolicy: policy}
		if _, err := c.SchedulingV1().PriorityClasses().Create(ctx, pc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	groups, made := c.SchedulingV1beta1().PodGroups("default"), 0
	create := func(class string, policy *schedulingv1beta1.PreemptionPolicy) (*schedulingv1beta1.PodGroup, error) {
		made++
		g := groupOf(fmt.Sprintf("g%d", made))
		g.Spec.PriorityClassName, g.Spec.PreemptionPolicy = class, policy
		return groups.Create(ctx, g, metav1.CreateOptions{})
	}
	for class, want := range map[string]schedulingv1beta1.PreemptionPolicy{
		"meek": schedulingv1beta1.PreemptNever, "usual": schedulingv1beta1.PreemptLowerPriority, "": schedulingv1beta1.PreemptLowerPriority,
	} {
		for _, given := range []*schedulingv1beta1.PreemptionPolicy{nil, &want} {
			if g, err := create(class, given); err != nil || g.Spec.PreemptionPolicy == nil || *g.Spec.PreemptionPolicy != want {
				t.Errorf("class %q: %v, %+v", class, err, g)
			}
		}
	}
	_, err := create("meek", new(schedulingv1beta1.PreemptLowerPriority))
	const words = "preemption policy set in the pod group (PreemptLowerPriority) must match the preemption policy computed (Never)"
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), words) {
		t.Errorf("another policy than the class has: %v", err)
	}
}

func TestPodGroups(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir, withPodGroups)
	makeAccount(t, s)
	c, ctx := admin(t, s), t.Context()
	classes, groups := c.SchedulingV1().PriorityClasses(), c.SchedulingV1beta1().PodGroups("default")
	for _, pc := range []*schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}, {ObjectMeta: metav1.ObjectMeta{Name: "usual"}, Value: 10, GlobalDefault: true},
	} {
		if _, err := classes.Create(ctx, pc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w := &schedulingv1beta1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "w"}}
	w.Spec.PodGroupTemplates = []schedulingv1beta1.PodGroupTemplate{{Name: "t", SchedulingPolicy: gangOf(2)}}
	if _, err := c.SchedulingV1beta1().Workloads("default").Create(ctx, w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: schedulingv1beta1.PodGroupSpec{
		SchedulingPolicy: gangOf(2), PriorityClassName: "high",
		WorkloadRef:                 &schedulingv1beta1.WorkloadReference{WorkloadName: "w", TemplateName: "t"},
		ParentCompositePodGroupName: new("parent"),
	}, Status: schedulingv1beta1.PodGroupStatus{Conditions: []metav1.Condition{{Type: "Forged", Status: "True"}}}}
	g, err := groups.Create(ctx, g, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Finalizers) != 1 || g.Finalizers[0] != "scheduling.k8s.io/podgroup-protection" {
		t.Errorf("finalizers %v", g.Finalizers)
	}
	if s := g.Spec; s.Priority == nil || *s.Priority != 1000 || s.DisruptionMode == nil || s.DisruptionMode.Single == nil || s.ParentCompositePodGroupName != nil {
		t.Errorf("spec %+v", s)
	}
	if len(g.Status.Conditions) != 0 {
		t.Errorf("status %+v", g.Status)
	}
	usual, err := groups.Create(ctx, groupOf("usual"), metav1.CreateOptions{})
	if err != nil || usual.Spec.PriorityClassName != "usual" || *usual.Spec.Priority != 10 {
		t.Errorf("%v, %+v", err, usual)
	}
	refusedGroups(t, c)
	shared := groupOf("shared")
	shared.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "c", ResourceClaimName: new("c")}}
	if shared, err = groups.Create(ctx, shared, metav1.CreateOptions{}); err != nil || shared.Spec.ResourceClaims != nil {
		t.Errorf("claims without their gate: %v, %+v", err, shared)
	}

	// The status has an endpoint of its own, and changes nothing else.
	g.Status.Conditions = []metav1.Condition{{Type: "PodGroupInitiallyScheduled", Status: "True", Reason: "Scheduled", LastTransitionTime: metav1.Now()}}
	g.Spec.SchedulingPolicy.Gang.MinCount, g.Labels = 9, map[string]string{"a": "b"}
	if g, err = groups.UpdateStatus(ctx, g, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(g.Status.Conditions) != 1 || g.Spec.SchedulingPolicy.Gang.MinCount != 2 || g.Labels != nil {
		t.Errorf("%+v", g)
	}
	g.Status, g.Spec.SchedulingPolicy.Gang.MinCount = schedulingv1beta1.PodGroupStatus{}, 3
	if g, err = groups.Update(ctx, g, metav1.UpdateOptions{}); err != nil || len(g.Status.Conditions) != 1 || g.Spec.SchedulingPolicy.Gang.MinCount != 3 {
		t.Errorf("%v, %+v", err, g)
	}
	if _, err := c.CoreV1().Pods("default").Create(ctx, member("p", "g"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := c.CoreV1().Pods("default").Create(ctx, member("q", "Not_A_Name"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.schedulingGroup.podGroupName") {
		t.Errorf("a pod of a group that cannot be: %v", err)
	}
	if text := aggregatedDiscovery(t, c); !strings.Contains(text, `"podgroups"`) || !strings.Contains(text, `"workloads"`) {
		t.Errorf("discovery lacks them")
	}
	rights, err := c.RbacV1().ClusterRoles().Get(ctx, "system:kube-scheduler", metav1.GetOptions{})
	if err != nil || !strings.Contains(rights.String(), "podgroups/status") {
		t.Errorf("the scheduler's rights: %v, %v", rights, err)
	}
	stop()

	// Off again: what is stored stays, and a pod keeps its group.
	s, stop = run(t, dir)
	c = admin(t, s)
	p, err := c.CoreV1().Pods("default").Patch(ctx, "p", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	if err != nil || p.Spec.SchedulingGroup == nil {
		t.Errorf("%v, %+v", err, p)
	}
	stop()
	s, stop = run(t, dir, withPodGroups)
	defer stop()
	if g, err := admin(t, s).SchedulingV1beta1().PodGroups("default").Get(ctx, "g", metav1.GetOptions{}); err != nil || g.Spec.SchedulingPolicy.Gang.MinCount != 3 {
		t.Errorf("what was stored: %v, %+v", err, g)
	}
}

// Pods of a group have claims for devices in common, if the gate is open; a group that has them keeps them.
func TestClaimsOfPodGroups(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir, func(c *Config) {
		c.FeatureGates = map[string]bool{"GenericWorkload": true, "DRAWorkloadResourceClaims": true}
	})
	ctx, groups := t.Context(), admin(t, s).SchedulingV1beta1().PodGroups("default")
	g := groupOf("g")
	g.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "c", ResourceClaimTemplateName: new("t")}}
	wrong := g.DeepCopy()
	wrong.Spec.ResourceClaims[0].ResourceClaimName = new("c")
	if _, err := groups.Create(ctx, wrong, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "must specify exactly one of: `resourceClaimName`, `resourceClaimTemplateName`") {
		t.Errorf("both a claim and a template: %v", err)
	}
	if _, err := groups.Create(ctx, g, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := `{"status":{"resourceClaimStatuses":[{"name":"%","resourceClaimName":"g-c-1"}]}}`
	for name, refused := range map[string]bool{"c": false, "other": true} {
		_, err := groups.Patch(ctx, "g", types.StrategicMergePatchType, []byte(strings.Replace(patch, "%", name, 1)), metav1.PatchOptions{}, "status")
		if apierrors.IsInvalid(err) != refused || err != nil && !refused {
			t.Errorf("status of claim %s: %v", name, err)
		}
	}
	rights, err := admin(t, s).RbacV1().ClusterRoles().Get(ctx, "system:controller:resource-claim-controller", metav1.GetOptions{})
	if err != nil || !strings.Contains(rights.String(), "podgroups/status") {
		t.Errorf("the controller's rights: %v, %v", rights, err)
	}
	stop()

	s, stop = run(t, dir, withPodGroups)
	defer stop()
	g, err = admin(t, s).SchedulingV1beta1().PodGroups("default").Patch(ctx, "g", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	if err != nil || len(g.Spec.ResourceClaims) != 1 || len(g.Status.ResourceClaimStatuses) != 1 {
		t.Errorf("after the gate was closed: %v, %+v", err, g)
	}
}

func gangOf(n int32) schedulingv1beta1.PodGroupSchedulingPolicy {
	return schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: n}}
}

func groupOf(name string) *schedulingv1beta1.PodGroup {
	return &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: gangOf(1)}}
}

func refusedGroups(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	for want, change := range map[string]func(*schedulingv1beta1.PodGroup){
		"no PriorityClass with name none was found": func(g *schedulingv1beta1.PodGroup) { g.Spec.PriorityClassName = "none" },
		"must match the priority computed (1000)": func(g *schedulingv1beta1.PodGroup) {
			g.Spec.PriorityClassName, g.Spec.Priority = "high", ptr.To[int32](5)
		},
		"must be less than or equal to 1000000000":   func(g *schedulingv1beta1.PodGroup) { g.Spec.PriorityClassName = "system-node-critical" },
		"must specify one of: `basic`, `gang`":       func(g *schedulingv1beta1.PodGroup) { g.Spec.SchedulingPolicy.Gang = nil },
		"spec.schedulingPolicy.gang.minCount: Requ":  func(g *schedulingv1beta1.PodGroup) { g.Spec.SchedulingPolicy = gangOf(0) },
		"a lowercase RFC 1123 subdomain must consis": func(g *schedulingv1beta1.PodGroup) { g.Name = "A" },
	} {
		g := groupOf("wrong")
		change(g)
		if _, err := c.SchedulingV1beta1().PodGroups("default").Create(context.Background(), g, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
