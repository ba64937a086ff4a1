package validation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

const (
	highestUserPriority = 1000000000
	systemPrefix        = "system-"
)

var systemClasses = map[string]int32{
	pods.NodeCritical: pods.NodeCriticalPriority, pods.ClusterCritical: pods.ClusterCriticalPriority,
}

// PriorityClass checks a priority class.
func PriorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	p := &problems{}
	const reserved = "priority class names with '" + systemPrefix + "' prefix are reserved for system use only. error: "
	name := field.NewPath("metadata", "name")
	switch value, known := systemClasses[c.Name]; {
	case !strings.HasPrefix(c.Name, systemPrefix):
		if c.Value > highestUserPriority {
			p.forbidden(field.NewPath("value"), "maximum allowed value of a user defined priority is %v", highestUserPriority)
		}
	case !known:
		p.forbidden(name, "%s%v is not a known system priority class", reserved, c.Name)
	case value != c.Value:
		p.forbidden(name, "%svalue of %v PriorityClass must be %v", reserved, c.Name, value)
	case c.GlobalDefault:
		p.forbidden(name, "%sglobalDefault of %v PriorityClass must be false", reserved, c.Name)
	}
	if c.PreemptionPolicy != nil {
		oneOfRequired(p, field.NewPath("preemptionPolicy"), *c.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
	return p.list
}

// PriorityClassUpdate checks a priority class that replaces old.
func PriorityClassUpdate(c, old *schedulingv1.PriorityClass) field.ErrorList {
	p := &problems{}
	if c.Value != old.Value {
		p.forbidden(field.NewPath("value"), "may not be changed in an update.")
	}
	if !apiequality.Semantic.DeepEqual(c.PreemptionPolicy, old.PreemptionPolicy) {
		p.invalid(field.NewPath("preemptionPolicy"), c.PreemptionPolicy, isImmutable)
	}
	return p.list
}
