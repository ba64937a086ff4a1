package validation

import (
	"strconv"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Scale checks what a /scale endpoint is given.
func Scale(s *autoscalingv1.Scale) field.ErrorList {
	p := &problems{list: metavalidation.ValidateManagedFields(s.ManagedFields, field.NewPath("metadata", "managedFields"))}
	if s.Spec.Replicas < 0 {
		p.invalid(field.NewPath("spec", "replicas"), s.Spec.Replicas, mustNotBeNegative)
	}
	return p.list
}

// podTemplate checks what a workload's pods are made from.
func (p *problems) podTemplate(at path, t *corev1.PodTemplateSpec) {
	spec := at.Child("spec")
	p.addAll(metavalidation.ValidateLabels(t.Labels, at.Child("labels")))
	p.addAll(apivalidation.ValidateAnnotations(t.Annotations, at.Child("annotations")))
	p.podAnnotations(at.Child("annotations"), &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec})
	c := &podContext{problems: p, spec: &t.Spec}
	c.podSpec(spec, "", false)
	if len(t.Spec.EphemeralContainers) > 0 {
		p.forbidden(spec.Child("ephemeralContainers"), "ephemeral containers not allowed in pod template")
	}
}

// runsForEver checks that the pods of a kind of workload never end by themselves.
func (p *problems) runsForEver(at path, spec *corev1.PodSpec, kind string) {
	if spec.RestartPolicy != corev1.RestartPolicyAlways {
		p.add(notSupported(at.Child("restartPolicy"), spec.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if spec.ActiveDeadlineSeconds != nil {
		p.forbidden(at.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in %s is not Supported", kind)
	}
}

// selector checks a selector that must not be empty, and that it matches the labels of the template
// beside it. It reports whether the selector can be read; detail is what to say if not.
func (p *problems) selector(spec path, s *metav1.LabelSelector, template *corev1.PodTemplateSpec, kind, detail string) bool {
	at := spec.Child("selector")
	if s == nil {
		p.required(at, "")
	} else {
		p.addAll(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at))
		p.selectsSomething(at, s, kind)
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		p.add(field.Invalid(at, s, detail))
		return false
	}
	if !selector.Empty() {
		p.matchesTemplate(spec.Child("template"), selector, template)
	}
	return true
}

func (p *problems) selectsSomething(at path, s *metav1.LabelSelector, kind string) {
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		p.invalid(at, s, "empty selector is invalid for %s", kind)
	}
}

func (p *problems) matchesTemplate(at path, selector labels.Selector, t *corev1.PodTemplateSpec) {
	if !selector.Matches(labels.Set(t.Labels)) {
		p.invalid(at.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
	}
}

// intOrPercent accepts a number that is not negative, and a percentage.
func (p *problems) intOrPercent(at path, v intstr.IntOrString) {
	if v.Type == intstr.String {
		matches(p, at, v, utilvalidation.IsValidPercent(v.StrVal))
		return
	}
	p.notNegative(at, int64(v.IntVal))
}

// atMostAll reports a percentage above 100.
func (p *problems) atMostAll(at path, v intstr.IntOrString) {
	if percent, ok := percentage(v); ok && percent > 100 {
		p.invalid(at, v, "%s", "must not be greater than 100%")
	}
}

func percentage(v intstr.IntOrString) (int, bool) {
	if v.Type != intstr.String || len(utilvalidation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	return n, err == nil
}

// amount returns the number, or the percentage as a number.
func amount(v intstr.IntOrString) int {
	if percent, ok := percentage(v); ok {
		return percent
	}
	return v.IntValue()
}

// count is a counter of a status.
type count struct {
	name  string
	value int64
}

// counted makes a count of a counter, which may be unset.
func counted[T int32 | int64](name string, value *T) count {
	if value == nil {
		return count{name, 0}
	}
	return count{name, int64(*value)}
}

func (p *problems) counts(at path, list ...count) {
	for _, c := range list {
		p.notNegative(at.Child(c.name), c.value)
	}
}

// atMost reports counters that are greater than total, which detail names.
func (p *problems) atMost(at path, total int32, detail string, list ...count) {
	for _, c := range list {
		if c.value > int64(total) {
			p.invalid(at.Child(c.name), c.value, "cannot be greater than %s", detail)
		}
	}
}

// notDecremented reports a counter that has gone down, or away.
func (p *problems) notDecremented(at path, value, old *int32) {
	switch {
	case old == nil:
	case value == nil:
		p.invalid(at, int32(0), "cannot be decremented")
	case *value < *old:
		p.invalid(at, *value, "cannot be decremented")
	}
}

// valueOf returns what v points to, or 0.
func valueOf(v *intstr.IntOrString) intstr.IntOrString {
	if v == nil {
		return intstr.IntOrString{}
	}
	return *v
}
