package validation

import (
	policyv1 "k8s.io/api/policy/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PodDisruptionBudget checks a budget.
func PodDisruptionBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
	p := &problems{}
	at, spec := field.NewPath("spec"), &b.Spec
	if spec.MinAvailable != nil && spec.MaxUnavailable != nil {
		p.invalid(at, *spec, "minAvailable and maxUnavailable cannot be both set")
	}
	p.share(at.Child("minAvailable"), spec.MinAvailable)
	p.share(at.Child("maxUnavailable"), spec.MaxUnavailable)
	p.addAll(metavalidation.ValidateLabelSelector(spec.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	if policy := spec.UnhealthyPodEvictionPolicy; policy != nil {
		oneOf(p, at.Child("unhealthyPodEvictionPolicy"), *policy, policyv1.AlwaysAllow, policyv1.IfHealthyBudget)
	}
	return p.list
}

func (p *problems) share(at path, v *intstr.IntOrString) {
	if v != nil {
		p.intOrPercent(at, *v)
		p.atMostAll(at, *v)
	}
}

// PodDisruptionBudgetStatus checks the status of a budget.
func PodDisruptionBudgetStatus(b *policyv1.PodDisruptionBudget) field.ErrorList {
	p := &problems{}
	at, s := field.NewPath("status"), &b.Status
	p.addAll(metavalidation.ValidateConditions(s.Conditions, at.Child("conditions")))
	p.counts(at, counted("disruptionsAllowed", &s.DisruptionsAllowed), counted("currentHealthy", &s.CurrentHealthy),
		counted("desiredHealthy", &s.DesiredHealthy), counted("expectedPods", &s.ExpectedPods))
	return p.list
}
