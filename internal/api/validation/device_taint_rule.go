package validation

import (
	resourcev1 "k8s.io/api/resource/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DeviceTaintRule checks a rule that taints devices.
func DeviceTaintRule(r *resourcev1.DeviceTaintRule) field.ErrorList {
	return DeviceTaintRuleUpdate(r, &resourcev1.DeviceTaintRule{})
}

// DeviceTaintRuleUpdate checks a rule that replaces old, whose effect is not checked again.
func DeviceTaintRuleUpdate(r, old *resourcev1.DeviceTaintRule) field.ErrorList {
	p, at := &problems{}, field.NewPath("spec")
	if s, at := r.Spec.DeviceSelector, at.Child("deviceSelector"); s != nil {
		if s.Driver != nil {
			p.csiDriver(at.Child("driver"), *s.Driver)
		}
		if s.Pool != nil {
			p.poolName(at.Child("pool"), *s.Pool)
		}
		if s.Device != nil {
			p.label(at.Child("device"), *s.Device)
		}
	}
	t := r.Spec.Taint
	if t.Effect == old.Spec.Taint.Effect && t.Effect != "" {
		t.Effect = resourcev1.DeviceTaintEffectNone
	}
	p.deviceTaint(at.Child("taint"), &t)
	return p.list
}

// DeviceTaintRuleStatusUpdate checks what is reported of a rule.
func DeviceTaintRuleStatusUpdate(r, _ *resourcev1.DeviceTaintRule) field.ErrorList {
	p, at := &problems{}, field.NewPath("status", "conditions")
	p.addAll(metavalidation.ValidateConditions(r.Status.Conditions, at))
	if n := len(r.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
		p.add(field.TooMany(at, n, resourcev1.DeviceTaintRuleStatusMaxConditions))
	}
	return p.list
}
