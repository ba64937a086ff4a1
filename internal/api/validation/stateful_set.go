package validation

import (
	"encoding/json"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// StatefulSet checks a new stateful set.
func StatefulSet(s *appsv1.StatefulSet) field.ErrorList {
	p := &problems{}
	at := field.NewPath("spec")
	for i := range s.Spec.VolumeClaimTemplates {
		p.claimSpec(at.Child("volumeClaimTemplates").Index(i).Child("spec"), &s.Spec.VolumeClaimTemplates[i].Spec)
	}
	if s.Spec.ServiceName != "" {
		p.label(at.Child("serviceName"), s.Spec.ServiceName)
	}
	p.statefulSet(at, &s.Spec, false)
	return p.list
}

// statefulSet checks what can change of a stateful set. lenient leaves out the pods' spec.
func (p *problems) statefulSet(at path, spec *appsv1.StatefulSetSpec, lenient bool) {
	switch policy := at.Child("podManagementPolicy"); spec.PodManagementPolicy {
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	case "":
		p.required(policy, "")
	default:
		p.invalid(policy, spec.PodManagementPolicy, "must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)
	}
	p.statefulStrategy(at.Child("updateStrategy"), &spec.UpdateStrategy)
	if r := spec.PersistentVolumeClaimRetentionPolicy; r != nil {
		at := at.Child("persistentVolumeClaimRetentionPolicy")
		p.retention(at.Child("whenDeleted"), r.WhenDeleted)
		p.retention(at.Child("whenScaled"), r.WhenScaled)
	}
	p.counts(at, counted("replicas", spec.Replicas), counted("minReadySeconds", &spec.MinReadySeconds))
	if spec.Ordinals != nil {
		p.counts(at, counted("ordinals.start", &spec.Ordinals.Start))
	}
	if p.selector(at, spec.Selector, &spec.Template, "statefulset", "") {
		p.statefulTemplate(at.Child("template"), spec, lenient)
	}
	p.runsForEver(at.Child("template", "spec"), &spec.Template.Spec, "StatefulSet")
}

func (p *problems) retention(at path, policy appsv1.PersistentVolumeClaimRetentionPolicyType) {
	oneOf(p, at, policy, appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType)
}

// statefulTemplate checks the template as the pods will have it: the controller sets their host
// names, and adds the volumes of their claims.
func (p *problems) statefulTemplate(at path, spec *appsv1.StatefulSetSpec, lenient bool) {
	if lenient {
		p.addAll(metavalidation.ValidateLabels(spec.Template.Labels, at.Child("labels")))
		p.addAll(apivalidation.ValidateAnnotations(spec.Template.Annotations, at.Child("annotations")))
		return
	}
	t := spec.Template.DeepCopy()
	t.Spec.Subdomain, t.Spec.Hostname = "", ""
	var volumes []corev1.Volume
	for _, claim := range spec.VolumeClaimTemplates {
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}
		replaces := func(v corev1.Volume) bool { return v.Name == claim.Name }
		volumes = append(slices.DeleteFunc(volumes, replaces), corev1.Volume{Name: claim.Name, VolumeSource: source})
		t.Spec.Volumes = slices.DeleteFunc(t.Spec.Volumes, replaces)
	}
	t.Spec.Volumes = append(volumes, t.Spec.Volumes...)
	p.podTemplate(at, t)
}

func (p *problems) statefulStrategy(at path, s *appsv1.StatefulSetUpdateStrategy) {
	rolling := at.Child("rollingUpdate")
	switch s.Type {
	case "":
		p.required(at, "")
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			p.invalid(rolling, s.RollingUpdate, "only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType)
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if s.RollingUpdate == nil {
			return
		}
		p.counts(rolling, counted("partition", s.RollingUpdate.Partition))
		if most := s.RollingUpdate.MaxUnavailable; most != nil {
			at := rolling.Child("maxUnavailable")
			p.intOrPercent(at, *most)
			if amount(*most) == 0 {
				p.invalid(at, *most, "cannot be 0")
			}
			p.atMostAll(at, *most)
		}
	default:
		p.invalid(at, *s, "must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType)
	}
}

// StatefulSetUpdate checks a stateful set that replaces old. Pods that were invalid before may stay
// so.
func StatefulSetUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	before, p := &problems{}, &problems{}
	before.statefulSet(nil, &old.Spec, false)
	at := field.NewPath("spec")
	p.statefulSet(at, &s.Spec, len(before.list) > 0)
	p.unchanged(at.Child("selector"), s.Spec.Selector, old.Spec.Selector)
	p.unchanged(at.Child("volumeClaimTemplates"), s.Spec.VolumeClaimTemplates, old.Spec.VolumeClaimTemplates)
	p.unchanged(at.Child("serviceName"), s.Spec.ServiceName, old.Spec.ServiceName)
	p.unchanged(at.Child("podManagementPolicy"), s.Spec.PodManagementPolicy, old.Spec.PodManagementPolicy)
	return p.list
}

// StatefulSetStatusUpdate checks the status of a stateful set that replaces old.
func StatefulSetStatusUpdate(set, old *appsv1.StatefulSet) field.ErrorList {
	p := &problems{}
	at, s := field.NewPath("status"), &set.Status
	ready, current := counted("readyReplicas", &s.ReadyReplicas), counted("currentReplicas", &s.CurrentReplicas)
	updated, available := counted("updatedReplicas", &s.UpdatedReplicas), counted("availableReplicas", &s.AvailableReplicas)
	p.counts(at, counted("replicas", &s.Replicas), ready, current, updated, available,
		counted("observedGeneration", &s.ObservedGeneration), counted("collisionCount", s.CollisionCount))
	p.atMost(at, s.Replicas, "status.replicas", ready, current, updated, available)
	p.atMost(at, s.ReadyReplicas, "status.readyReplicas", available)
	p.notDecremented(at.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)
	return p.list
}

// ControllerRevision checks a new revision.
func ControllerRevision(r *appsv1.ControllerRevision) field.ErrorList {
	p := &problems{}
	at := field.NewPath("data")
	p.counts(nil, counted("revision", &r.Revision))
	var data any
	switch err := json.Unmarshal(r.Data.Raw, &data); {
	case r.Data.Raw == nil:
		p.required(at, "data is mandatory")
	case err != nil:
		p.invalid(at, "<value omitted>", "error parsing data: %v", err)
	case data == nil:
		p.required(at, "data is mandatory")
	default:
		if _, ok := data.(map[string]any); !ok {
			p.required(at, "data must be a valid JSON object")
		}
	}
	return p.list
}

// ControllerRevisionUpdate checks a revision that replaces old: its data stay.
func ControllerRevisionUpdate(r, old *appsv1.ControllerRevision) field.ErrorList {
	p := &problems{}
	p.counts(nil, counted("revision", &r.Revision))
	p.addAll(apivalidation.ValidateImmutableField(r.Data, old.Data, field.NewPath("data")))
	return p.list
}
