package validation

import (
	"strings"
	"testing"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func gang(n int32) schedulingv1beta1.PodGroupSchedulingPolicy {
	return schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: n}}
}

func topology(keys ...string) *schedulingv1beta1.PodGroupSchedulingConstraints {
	c := &schedulingv1beta1.PodGroupSchedulingConstraints{}
	for _, key := range keys {
		c.Topology = append(c.Topology, schedulingv1beta1.TopologyConstraint{Key: key})
	}
	return c
}

// groupClaims returns claims from pairs of what they are called and their names; those without names are from a template.
func groupClaims(pairs ...string) (out []schedulingv1beta1.PodGroupResourceClaim) {
	for i := 0; i < len(pairs); i += 2 {
		c := schedulingv1beta1.PodGroupResourceClaim{Name: pairs[i], ResourceClaimTemplateName: new("template")}
		if pairs[i+1] != "" {
			c.ResourceClaimName, c.ResourceClaimTemplateName = &pairs[i+1], nil
		}
		out = append(out, c)
	}
	return out
}

// faults compares errors with one "path: type" each.
func faults(t *testing.T, what string, errs field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, e := range errs {
		got = append(got, e.Field+": "+e.Type.String())
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("%s: %q, want %q\n%v", what, got, want, errs)
	}
}

func TestPodGroup(t *testing.T) {
	basic := schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}}
	both := gang(1)
	both.Basic = basic.Basic
	mode := &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}, All: &schedulingv1beta1.AllDisruptionMode{}}
	ref := &schedulingv1beta1.WorkloadReference{WorkloadName: "w", TemplateName: "t"}
	for what, c := range map[string]struct {
		spec schedulingv1beta1.PodGroupSpec
		want []string
	}{
		"a gang":         {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: gang(3), WorkloadRef: ref, PriorityClassName: "high", Priority: ptr.To[int32](1000000000)}, nil},
		"basic":          {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic}, nil},
		"no policy":      {schedulingv1beta1.PodGroupSpec{}, []string{"spec.schedulingPolicy: Invalid value"}},
		"both policies":  {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: both}, []string{"spec.schedulingPolicy: Invalid value"}},
		"no size":        {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: gang(0)}, []string{"spec.schedulingPolicy.gang.minCount: Required value"}},
		"negative size":  {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: gang(-1)}, []string{"spec.schedulingPolicy.gang.minCount: Invalid value"}},
		"two modes":      {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, DisruptionMode: mode}, []string{"spec.disruptionMode: Invalid value"}},
		"no mode at all": {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, DisruptionMode: &schedulingv1beta1.DisruptionMode{}}, []string{"spec.disruptionMode: Invalid value"}},
		"empty reference": {
			schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, WorkloadRef: &schedulingv1beta1.WorkloadReference{}},
			[]string{"spec.workloadRef.workloadName: Required value", "spec.workloadRef.templateName: Required value"},
		},
		"wrong names": {
			schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, WorkloadRef: &schedulingv1beta1.WorkloadReference{WorkloadName: "A", TemplateName: "a.b"}, PriorityClassName: "_"},
			[]string{"spec.workloadRef.workloadName: Invalid value", "spec.workloadRef.templateName: Invalid value", "spec.priorityClassName: Invalid value"},
		},
		"a domain":         {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, SchedulingConstraints: topology("topology.kubernetes.io/rack")}, nil},
		"no domain":        {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, SchedulingConstraints: topology()}, nil},
		"a domain of none": {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, SchedulingConstraints: topology("")}, []string{"spec.schedulingConstraints.topology[0].key: Required value"}},
		"not a label":      {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, SchedulingConstraints: topology("a b")}, []string{"spec.schedulingConstraints.topology[0].key: Invalid value"}},
		"two domains":      {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, SchedulingConstraints: topology("a", "b")}, []string{"spec.schedulingConstraints.topology: Too many"}},
		"claims":           {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, ResourceClaims: groupClaims("a", "c", "b", "")}, nil},
		"claims that are none": {
			schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, ResourceClaims: []schedulingv1beta1.PodGroupResourceClaim{
				{Name: "a"}, {Name: "b", ResourceClaimName: new("c"), ResourceClaimTemplateName: new("t")},
			}},
			[]string{"spec.resourceClaims[0]: Invalid value", "spec.resourceClaims[1]: Invalid value"},
		},
		"wrong names of claims": {
			schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, ResourceClaims: []schedulingv1beta1.PodGroupResourceClaim{
				{ResourceClaimName: new("C")}, {Name: "a.b", ResourceClaimTemplateName: new("_")},
			}},
			[]string{
				"spec.resourceClaims[0].name: Required value", "spec.resourceClaims[0].resourceClaimName: Invalid value",
				"spec.resourceClaims[1].name: Invalid value", "spec.resourceClaims[1].resourceClaimTemplateName: Invalid value",
			},
		},
		"one claim twice": {schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, ResourceClaims: groupClaims("a", "c", "a", "")}, []string{"spec.resourceClaims[1]: Duplicate value"}},
		"five claims": {
			schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, ResourceClaims: groupClaims("a", "", "b", "", "c", "", "d", "", "e", "")},
			[]string{"spec.resourceClaims: Too many"},
		},
		"priority of the system": {
			schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, PriorityClassName: "system-node-critical", Priority: ptr.To[int32](2000001000)},
			[]string{"spec.priority: Invalid value"},
		},
		"a preemption policy": {
			schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, PreemptionPolicy: new(schedulingv1beta1.PreemptNever)}, nil,
		},
		"a wrong one": {
			schedulingv1beta1.PodGroupSpec{SchedulingPolicy: basic, PreemptionPolicy: new(schedulingv1beta1.PreemptionPolicy("Always"))},
			[]string{"spec.preemptionPolicy: Unsupported value"},
		},
	} {
		faults(t, what, PodGroup(&schedulingv1beta1.PodGroup{Spec: c.spec}), c.want...)
	}
}

func TestPodGroupUpdate(t *testing.T) {
	old := &schedulingv1beta1.PodGroup{Spec: schedulingv1beta1.PodGroupSpec{
		SchedulingPolicy: gang(2), Priority: ptr.To[int32](1), PriorityClassName: "c",
		DisruptionMode: &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}},
	}}
	change := func(f func(*schedulingv1beta1.PodGroupSpec)) *schedulingv1beta1.PodGroup {
		g := old.DeepCopy()
		f(&g.Spec)
		return g
	}
	faults(t, "another size", PodGroupUpdate(change(func(s *schedulingv1beta1.PodGroupSpec) { s.SchedulingPolicy = gang(5) }), old))
	faults(t, "no size", PodGroupUpdate(change(func(s *schedulingv1beta1.PodGroupSpec) { s.SchedulingPolicy = gang(0) }), old),
		"spec.schedulingPolicy.gang.minCount: Required value")
	faults(t, "basic now", PodGroupUpdate(change(func(s *schedulingv1beta1.PodGroupSpec) {
		s.SchedulingPolicy = schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}}
	}), old), "spec.schedulingPolicy.basic: Invalid value", "spec.schedulingPolicy.gang: Invalid value")
	faults(t, "all else", PodGroupUpdate(change(func(s *schedulingv1beta1.PodGroupSpec) {
		s.Priority, s.PriorityClassName, s.DisruptionMode = nil, "", nil
		s.WorkloadRef = &schedulingv1beta1.WorkloadReference{WorkloadName: "w", TemplateName: "t"}
		s.SchedulingConstraints, s.ResourceClaims = topology("a"), groupClaims("a", "")
		s.PreemptionPolicy = new(schedulingv1beta1.PreemptNever)
	}), old), "spec.workloadRef: Invalid value", "spec.schedulingConstraints: Invalid value", "spec.resourceClaims: Invalid value", "spec.disruptionMode: Invalid value", "spec.priorityClassName: Invalid value", "spec.priority: Invalid value", "spec.preemptionPolicy: Invalid value")

	g := old.DeepCopy()
	g.Status.Conditions = []metav1.Condition{{Type: "PodGroupInitiallyScheduled", Status: "True", Reason: "Scheduled", LastTransitionTime: metav1.Now()}}
	faults(t, "a condition", PodGroupStatus(g))
	g.Status.Conditions[0].Reason = ""
	faults(t, "a condition without a reason", PodGroupStatus(g), "status.conditions[0].reason: Required value")

	g = old.DeepCopy()
	g.Spec.ResourceClaims = groupClaims("a", "", "b", "")
	claims := func(names ...string) (out []schedulingv1beta1.PodGroupResourceClaimStatus) {
		for _, name := range names {
			out = append(out, schedulingv1beta1.PodGroupResourceClaimStatus{Name: name, ResourceClaimName: new("c-1")})
		}
		return out
	}
	g.Status.ResourceClaimStatuses = claims("b", "a")
	g.Status.ResourceClaimStatuses[0].ResourceClaimName = nil
	faults(t, "claims", PodGroupStatus(g))
	g.Status.ResourceClaimStatuses = claims("a", "other", "a")
	g.Status.ResourceClaimStatuses[0].ResourceClaimName = new("C")
	faults(t, "wrong claims", PodGroupStatus(g), "status.resourceClaimStatuses[0].resourceClaimName: Invalid value",
		"status.resourceClaimStatuses[1].name: Invalid value", "status.resourceClaimStatuses[2]: Duplicate value")
	g.Status.ResourceClaimStatuses = claims("a", "a", "a", "a", "a")
	faults(t, "five claims", PodGroupStatus(g), "status.resourceClaimStatuses: Too many")
}

func TestWorkload(t *testing.T) {
	of := func(names ...string) *schedulingv1beta1.Workload {
		w := &schedulingv1beta1.Workload{}
		for _, n := range names {
			w.Spec.PodGroupTemplates = append(w.Spec.PodGroupTemplates, schedulingv1beta1.PodGroupTemplate{Name: n, SchedulingPolicy: gang(1)})
		}
		return w
	}
	faults(t, "two templates", Workload(of("a", "b")))
	faults(t, "none", Workload(of()), "spec: Invalid value")
	faults(t, "nine", Workload(of("a", "b", "c", "d", "e", "f", "g", "h", "i")), "spec.podGroupTemplates: Too many")
	faults(t, "one twice", Workload(of("a", "a")), "spec.podGroupTemplates[1]: Duplicate value")
	faults(t, "without names", Workload(of("", "A")), "spec.podGroupTemplates[0].name: Required value", "spec.podGroupTemplates[1].name: Invalid value")
	w := of("a")
	w.Spec.ControllerRef = &schedulingv1beta1.TypedLocalObjectReference{APIGroup: "_", Name: "a/b"}
	w.Spec.PodGroupTemplates[0].SchedulingPolicy, w.Spec.PodGroupTemplates[0].ResourceClaims = gang(-1), groupClaims("c", "_")
	faults(t, "wrong reference", Workload(w), "spec.controllerRef.apiGroup: Invalid value", "spec.controllerRef.kind: Required value",
		"spec.controllerRef.name: Invalid value", "spec.podGroupTemplates[0].schedulingPolicy.gang.minCount: Invalid value",
		"spec.podGroupTemplates[0].resourceClaims[0].resourceClaimName: Invalid value")

	old := of("a", "b")
	w = of("b", "a") // the order does not matter
	w.Spec.PodGroupTemplates[0].SchedulingPolicy = gang(7)
	faults(t, "another size", WorkloadUpdate(w, old))
	faults(t, "one less", WorkloadUpdate(of("a"), old), "spec.podGroupTemplates: Forbidden")
	faults(t, "one more", WorkloadUpdate(of("a", "b", "c"), old), "spec.podGroupTemplates[2]: Forbidden")
	w = of("a", "b")
	w.Spec.ControllerRef = &schedulingv1beta1.TypedLocalObjectReference{Kind: "Job", Name: "j"}
	w.Spec.PodGroupTemplates[0].PriorityClassName = "high"
	w.Spec.PodGroupTemplates[1].ResourceClaims = groupClaims("c", "")
	faults(t, "fixed fields", WorkloadUpdate(w, old), "spec.controllerRef: Invalid value", "spec.podGroupTemplates[0].priorityClassName: Invalid value",
		"spec.podGroupTemplates[1].resourceClaims: Invalid value")
}
