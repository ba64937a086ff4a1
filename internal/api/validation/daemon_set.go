package validation

import (
	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DaemonSet checks a daemon set.
func DaemonSet(d *appsv1.DaemonSet) field.ErrorList {
	p := &problems{}
	at, spec := field.NewPath("spec"), &d.Spec
	p.addAll(metavalidation.ValidateLabelSelector(spec.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	if selector, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil {
		p.matchesTemplate(at.Child("template"), selector, &spec.Template)
	}
	if spec.Selector != nil {
		p.selectsSomething(at.Child("selector"), spec.Selector, "daemonset")
	}
	p.podTemplate(at.Child("template"), &spec.Template)
	p.runsForEver(at.Child("template", "spec"), &spec.Template.Spec, "DaemonSet")
	p.counts(at, counted("minReadySeconds", &spec.MinReadySeconds), counted("revisionHistoryLimit", spec.RevisionHistoryLimit))
	p.daemonStrategy(at.Child("updateStrategy"), &spec.UpdateStrategy)
	return p.list
}

func (p *problems) daemonStrategy(at path, s *appsv1.DaemonSetUpdateStrategy) {
	rolling := at.Child("rollingUpdate")
	switch s.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		if s.RollingUpdate == nil {
			p.required(rolling, "")
			return
		}
		p.rollingDaemons(rolling, s.RollingUpdate)
	default:
		p.add(field.NotSupported(at, s, []appsv1.DaemonSetUpdateStrategyType{appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType}))
	}
}

// rollingDaemons accepts either old pods that end before new ones start, or new ones that start
// before.
func (p *problems) rollingDaemons(at path, r *appsv1.RollingUpdateDaemonSet) {
	unavailable, surge := valueOf(r.MaxUnavailable), valueOf(r.MaxSurge)
	p.intOrPercent(at.Child("maxUnavailable"), unavailable)
	p.intOrPercent(at.Child("maxSurge"), surge)
	p.atMostAll(at.Child("maxUnavailable"), unavailable)
	p.atMostAll(at.Child("maxSurge"), surge)
	switch before, after := amount(unavailable) != 0, amount(surge) != 0; {
	case before && after:
		p.invalid(at.Child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero")
	case !before && !after:
		p.required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0")
	}
}

// DaemonSetUpdate checks a daemon set that replaces old.
func DaemonSetUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	return append(DaemonSet(d), apivalidation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// DaemonSetStatusUpdate checks the status of a daemon set that replaces old.
func DaemonSetStatusUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	p := &problems{}
	at, s := field.NewPath("status"), &d.Status
	p.counts(at,
		counted("currentNumberScheduled", &s.CurrentNumberScheduled), counted("numberMisscheduled", &s.NumberMisscheduled),
		counted("desiredNumberScheduled", &s.DesiredNumberScheduled), counted("numberReady", &s.NumberReady),
		counted("observedGeneration", &s.ObservedGeneration), counted("updatedNumberScheduled", &s.UpdatedNumberScheduled),
		counted("numberAvailable", &s.NumberAvailable), counted("numberUnavailable", &s.NumberUnavailable), counted("collisionCount", s.CollisionCount))
	p.notDecremented(at.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)
	return p.list
}
