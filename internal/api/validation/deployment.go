package validation

import (
	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ReplicaSet checks a replica set.
func ReplicaSet(r *appsv1.ReplicaSet) field.ErrorList {
	p := &problems{}
	at := field.NewPath("spec")
	p.counts(at, counted("replicas", r.Spec.Replicas), count{"minReadySeconds", int64(r.Spec.MinReadySeconds)})
	// Upstream's message says deployment, too.
	if p.selector(at, r.Spec.Selector, &r.Spec.Template, "deployment", "invalid label selector") {
		p.podTemplate(at.Child("template"), &r.Spec.Template)
		p.runsForEver(at.Child("template", "spec"), &r.Spec.Template.Spec, "ReplicaSet")
	}
	return p.list
}

// ReplicaSetUpdate checks a replica set that replaces old.
func ReplicaSetUpdate(r, old *appsv1.ReplicaSet) field.ErrorList {
	return append(ReplicaSet(r), apivalidation.ValidateImmutableField(r.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// ReplicaSetStatus checks the status of a replica set.
func ReplicaSetStatus(r *appsv1.ReplicaSet) field.ErrorList {
	p := &problems{}
	at, s := field.NewPath("status"), &r.Status
	labeled, ready, available := counted("fullyLabeledReplicas", &s.FullyLabeledReplicas), counted("readyReplicas", &s.ReadyReplicas), counted("availableReplicas", &s.AvailableReplicas)
	p.counts(at, counted("replicas", &s.Replicas), labeled, ready, available,
		counted("observedGeneration", &s.ObservedGeneration), counted("terminatingReplicas", s.TerminatingReplicas))
	p.atMost(at, s.Replicas, "status.replicas", labeled, ready, available)
	p.atMost(at, s.ReadyReplicas, "readyReplicas", available)
	return p.list
}

// Deployment checks a deployment.
func Deployment(d *appsv1.Deployment) field.ErrorList {
	p := &problems{}
	at, spec := field.NewPath("spec"), &d.Spec
	p.counts(at, counted("replicas", spec.Replicas), count{"minReadySeconds", int64(spec.MinReadySeconds)},
		counted("revisionHistoryLimit", spec.RevisionHistoryLimit), counted("progressDeadlineSeconds", spec.ProgressDeadlineSeconds))
	if p.selector(at, spec.Selector, &spec.Template, "deployment", "invalid label selector") {
		p.podTemplate(at.Child("template"), &spec.Template)
		p.runsForEver(at.Child("template", "spec"), &spec.Template.Spec, "ReplicaSet")
	}
	p.deploymentStrategy(at.Child("strategy"), &spec.Strategy)
	if s := spec.ProgressDeadlineSeconds; s != nil && *s <= spec.MinReadySeconds {
		p.invalid(at.Child("progressDeadlineSeconds"), *s, "must be greater than minReadySeconds")
	}
	return p.list
}

func (p *problems) deploymentStrategy(at path, s *appsv1.DeploymentStrategy) {
	rolling := at.Child("rollingUpdate")
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			p.forbidden(rolling, "may not be specified when strategy `type` is '%s'", s.Type)
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			p.required(rolling, "this should be defaulted and never be nil")
			return
		}
		p.rollingDeployment(rolling, s.RollingUpdate)
	default:
		p.add(field.NotSupported(at, s, []appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType}))
	}
}

func (p *problems) rollingDeployment(at path, r *appsv1.RollingUpdateDeployment) {
	unavailable, surge := valueOf(r.MaxUnavailable), valueOf(r.MaxSurge)
	p.intOrPercent(at.Child("maxUnavailable"), unavailable)
	p.intOrPercent(at.Child("maxSurge"), surge)
	if amount(unavailable) == 0 && amount(surge) == 0 {
		p.invalid(at.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0")
	}
	p.atMostAll(at.Child("maxUnavailable"), unavailable)
}

// DeploymentUpdate checks a deployment that replaces old.
func DeploymentUpdate(d, old *appsv1.Deployment) field.ErrorList {
	return append(Deployment(d), apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// DeploymentStatusUpdate checks the status of a deployment that replaces old.
func DeploymentStatusUpdate(d, old *appsv1.Deployment) field.ErrorList {
	p := &problems{}
	at, s := field.NewPath("status"), &d.Status
	updated, ready, available := counted("updatedReplicas", &s.UpdatedReplicas), counted("readyReplicas", &s.ReadyReplicas), counted("availableReplicas", &s.AvailableReplicas)
	p.counts(at, counted("observedGeneration", &s.ObservedGeneration), counted("replicas", &s.Replicas), updated, ready, available,
		counted("unavailableReplicas", &s.UnavailableReplicas), counted("terminatingReplicas", s.TerminatingReplicas), counted("collisionCount", s.CollisionCount))
	p.atMost(at, s.Replicas, "status.replicas", updated, ready, available)
	p.atMost(at, s.ReadyReplicas, "readyReplicas", available)
	p.notDecremented(at.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)
	return p.list
}
