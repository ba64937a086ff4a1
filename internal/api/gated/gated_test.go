package gated

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
)

// full returns a spec with every field that is cleared, and its neighbours.
func full() *corev1.PodSpec {
	http := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Protocol: ptr.To(corev1.HTTPProtocolHTTP2)}}
	grpc := corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1, Mode: ptr.To(corev1.GRPCProbeModeTLS)}}
	one, keys := ptr.To[int64](1), []corev1.KeyToPath{{Key: "k", Path: "p", User: ptr.To[int64](2)}}
	files := []corev1.DownwardAPIVolumeFile{{Path: "f", User: one}}
	mounts := []corev1.VolumeMount{{Name: "a", BindMountOptions: []string{"noexec"}}}
	source := func(s corev1.VolumeSource) corev1.Volume { return corev1.Volume{Name: "a", VolumeSource: s} }
	return &corev1.PodSpec{
		NodeName:           "n",
		SchedulingGroup:    &corev1.PodSchedulingGroup{PodGroupName: new("g")},
		EvictionResponders: []corev1.EvictionResponder{{Name: "r"}},
		Volumes: []corev1.Volume{
			source(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Mode: ptr.To[int32](0o700)}}),
			source(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{DefaultMode: ptr.To[int32](1), DefaultUser: one, Items: keys}}),
			source(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{DefaultUser: one, Items: keys}}),
			source(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultUser: one, Items: files}}),
			source(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultUser: one, Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{Items: keys}}, {Secret: &corev1.SecretProjection{Items: keys}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: files}},
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t", User: one}},
				{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Path: "b", User: one}},
				{PodCertificate: &corev1.PodCertificateProjection{SignerName: "s", User: one}},
			}}}),
		},
		InitContainers: []corev1.Container{{Name: "i", VolumeMounts: mounts, StartupProbe: &corev1.Probe{ProbeHandler: grpc}}},
		Containers: []corev1.Container{{
			Name: "c", VolumeMounts: mounts,
			LivenessProbe: &corev1.Probe{ProbeHandler: http}, ReadinessProbe: &corev1.Probe{ProbeHandler: grpc},
			Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: http.HTTPGet}},
		}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: mounts}}},
	}
}

func TestEveryFieldIsCleared(t *testing.T) {
	for i, fields := range off {
		s := full().DeepCopy() // so that nothing is shared
		if len(fields(s)) == 0 {
			t.Errorf("feature %d has no field in the example", i)
		}
		for j, f := range fields(s) {
			if !f.set() {
				t.Errorf("field %d of feature %d is not set in the example", j, i)
			}
		}
	}
	p := &corev1.Pod{Spec: *full().DeepCopy()}
	Features{}.Pod(p, nil)
	for i, fields := range off {
		for j, f := range fields(&p.Spec) {
			if f.set() {
				t.Errorf("field %d of feature %d was not cleared", j, i)
			}
		}
	}
	if p.Spec.SchedulingGroup != nil {
		t.Error("a group without groups")
	}
	if p.Spec.NodeName != "n" || p.Spec.Volumes[1].ConfigMap.DefaultMode == nil || p.Spec.Containers[0].LivenessProbe.HTTPGet.Path != "/" {
		t.Errorf("neighbours are gone: %+v", p.Spec)
	}
	p = &corev1.Pod{Spec: *full().DeepCopy()}
	Features{PodGroups: true}.Pod(p, nil)
	if p.Spec.SchedulingGroup == nil || p.Spec.EvictionResponders != nil {
		t.Errorf("with groups: %+v", p.Spec)
	}
}

func TestWhatIsThereStays(t *testing.T) {
	old := &corev1.Pod{Spec: *full().DeepCopy()}
	p := old.DeepCopy()
	Features{}.Pod(p, old)
	if !apiequality.Semantic.DeepEqual(p, old) {
		t.Errorf("an update lost fields: %+v", p.Spec)
	}
	// Features do not stand in for each other.
	old.Spec.EvictionResponders, old.Spec.SchedulingGroup = nil, nil
	Features{}.Pod(p, old)
	if !apiequality.Semantic.DeepEqual(p, old) {
		t.Errorf("a feature came in with another: %+v", p.Spec)
	}
}

func TestTemplates(t *testing.T) {
	Features{}.Template(nil, nil)
	d := &corev1.PodTemplateSpec{Spec: *full().DeepCopy()}
	Features{}.Template(d, nil)
	j := &batchv1.Job{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: *full().DeepCopy()}, Scheduling: &batchv1.JobSchedulingConfiguration{}}}
	old := j.DeepCopy()
	Features{}.Job(j, nil)
	c := &batchv1.CronJob{Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: *old.Spec.DeepCopy()}}}
	Features{}.CronJob(c, nil)
	for _, s := range []*corev1.PodSpec{&d.Spec, &j.Spec.Template.Spec, &c.Spec.JobTemplate.Spec.Template.Spec} {
		if s.SchedulingGroup != nil || s.EvictionResponders != nil || s.Volumes[0].EmptyDir.Mode != nil {
			t.Errorf("%+v", s)
		}
	}
	if j.Spec.Scheduling != nil || c.Spec.JobTemplate.Spec.Scheduling != nil {
		t.Error("a job with a scheduling configuration")
	}
	j = old.DeepCopy()
	Features{}.Job(j, old)
	if j.Spec.Scheduling == nil || j.Spec.Template.Spec.SchedulingGroup == nil {
		t.Error("an update lost what was there")
	}
}

// TestGatesThatTakeAnother: those of pod groups mean nothing without groups.
func TestGatesThatTakeAnother(t *testing.T) {
	for _, f := range []Features{{Topology: true}, {GroupClaims: true}, {GroupPreemption: true}} {
		if f.Check() == nil {
			t.Errorf("%+v is taken for enough", f)
		}
		f.PodGroups = true
		if err := f.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestGroups(t *testing.T) {
	constraints, claims := &schedulingv1beta1.PodGroupSchedulingConstraints{}, []schedulingv1beta1.PodGroupResourceClaim{{Name: "c"}}
	policy := ptr.To(schedulingv1beta1.PreemptNever)
	w := &schedulingv1beta1.Workload{Spec: schedulingv1beta1.WorkloadSpec{
		PodGroupTemplates:          []schedulingv1beta1.PodGroupTemplate{{Name: "a", SchedulingConstraints: constraints, ResourceClaims: claims, PreemptionPolicy: policy}},
		CompositePodGroupTemplates: []schedulingv1beta1.CompositePodGroupTemplate{{Name: "b"}},
	}}
	old := w.DeepCopy()
	Features{}.Workload(w, nil)
	want := schedulingv1beta1.WorkloadSpec{PodGroupTemplates: []schedulingv1beta1.PodGroupTemplate{{Name: "a"}}}
	if !apiequality.Semantic.DeepEqual(w.Spec, want) {
		t.Errorf("%+v", w.Spec)
	}
	w = old.DeepCopy()
	Features{Topology: true, GroupClaims: true, GroupPreemption: true}.Workload(w, nil)
	want.PodGroupTemplates[0].SchedulingConstraints, want.PodGroupTemplates[0].ResourceClaims = constraints, claims
	want.PodGroupTemplates[0].PreemptionPolicy = policy
	if !apiequality.Semantic.DeepEqual(w.Spec, want) {
		t.Errorf("with all gates: %+v", w.Spec)
	}
	w = old.DeepCopy()
	Features{}.Workload(w, old)
	if !apiequality.Semantic.DeepEqual(w, old) {
		t.Errorf("an update lost %+v", w.Spec)
	}
	g := &schedulingv1beta1.PodGroup{Spec: schedulingv1beta1.PodGroupSpec{
		ParentCompositePodGroupName: new("p"), SchedulingConstraints: constraints, ResourceClaims: claims, PreemptionPolicy: policy,
		PriorityClassName: "x",
	}, Status: schedulingv1beta1.PodGroupStatus{ResourceClaimStatuses: []schedulingv1beta1.PodGroupResourceClaimStatus{{Name: "c"}}}}
	was := g.DeepCopy()
	Features{}.PodGroup(g, nil)
	if !apiequality.Semantic.DeepEqual(g.Spec, schedulingv1beta1.PodGroupSpec{PriorityClassName: "x"}) {
		t.Errorf("%+v", g.Spec)
	}
	g = was.DeepCopy()
	Features{Topology: true}.PodGroup(g, nil)
	if !apiequality.Semantic.DeepEqual(g.Spec, schedulingv1beta1.PodGroupSpec{PriorityClassName: "x", SchedulingConstraints: constraints}) {
		t.Errorf("with the gate of topology: %+v", g.Spec)
	}
	g = was.DeepCopy()
	Features{GroupPreemption: true}.PodGroup(g, nil)
	if !apiequality.Semantic.DeepEqual(g.Spec, schedulingv1beta1.PodGroupSpec{PriorityClassName: "x", PreemptionPolicy: policy}) {
		t.Errorf("with the gate of preemption policies: %+v", g.Spec)
	}
	claimed := was.DeepCopy()
	Features{GroupClaims: true}.PodGroup(claimed, nil)
	Features{GroupClaims: true}.PodGroupStatus(claimed, g)
	if !apiequality.Semantic.DeepEqual(claimed.Spec, schedulingv1beta1.PodGroupSpec{PriorityClassName: "x", ResourceClaims: claims}) || claimed.Status.ResourceClaimStatuses == nil {
		t.Errorf("with the gate of claims: %+v", claimed)
	}
	if Features.PodGroupStatus(Features{}, g, g); g.Status.ResourceClaimStatuses != nil {
		t.Errorf("%+v", g.Status)
	}
	g = was.DeepCopy()
	Features{}.PodGroup(g, was)
	Features{}.PodGroupStatus(g, was)
	if !apiequality.Semantic.DeepEqual(g, was) {
		t.Errorf("an update lost %+v", g)
	}
}

// A pod is looked at on every write.
func BenchmarkPod(b *testing.B) {
	p := &corev1.Pod{Spec: *full().DeepCopy()}
	for b.Loop() {
		Features{}.Pod(p, nil)
	}
}
