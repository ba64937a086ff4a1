package validation

import (
	"errors"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxScalingPeriod = 1800 // seconds
	maxScalingWindow = 3600 // seconds
)

// HorizontalPodAutoscaler checks a new autoscaler.
func HorizontalPodAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	return autoscaler(a, autoscalerOptions{})
}

// HorizontalPodAutoscalerUpdate checks an autoscaler that replaces old. It may keep what was allowed
// to be wrong.
func HorizontalPodAutoscalerUpdate(a, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	is, was := a.Spec.ScaleTargetRef, old.Spec.ScaleTargetRef
	o := autoscalerOptions{anyTarget: is.Kind == was.Kind && is.APIVersion == was.APIVersion}
	o.anyObject = slices.ContainsFunc(old.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Object != nil && apiVersion(m.Object.DescribedObject.APIVersion, true) != nil
	})
	return autoscaler(a, o)
}

// autoscalerOptions say what is allowed.
type autoscalerOptions struct {
	anyTarget, anyObject bool // whatever their API version
}

func autoscaler(a *autoscalingv2.HorizontalPodAutoscaler, o autoscalerOptions) field.ErrorList {
	p, at, spec := &problems{}, field.NewPath("spec"), &a.Spec
	if spec.MinReplicas != nil {
		p.notNegative(at.Child("minReplicas"), int64(*spec.MinReplicas))
	}
	most := at.Child("maxReplicas")
	switch {
	case spec.MaxReplicas == 0:
		p.required(most, "must be set and greater than 0")
	case spec.MaxReplicas < 0:
		p.invalid(most, spec.MaxReplicas, "must be greater than or equal to 1")
	}
	if spec.MinReplicas != nil && spec.MaxReplicas < *spec.MinReplicas {
		p.invalid(most, spec.MaxReplicas, "must be greater than or equal to `minReplicas`")
	}
	target := at.Child("scaleTargetRef")
	p.crossVersion(target, &spec.ScaleTargetRef)
	if !o.anyTarget {
		p.groupOf(target, &spec.ScaleTargetRef, spec.ScaleTargetRef.Kind == "ReplicationController")
	}
	outside := false // whether a metric can tell anything while there are no pods
	for i := range spec.Metrics {
		m := &spec.Metrics[i]
		p.metric(at.Child("metrics").Index(i), m, o)
		outside = outside || m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	}
	if spec.MinReplicas != nil && *spec.MinReplicas == 0 && !outside {
		p.forbidden(at.Child("metrics"), "must specify at least one Object or External metric to support scaling to zero replicas")
	}
	if b := spec.Behavior; b != nil {
		p.scalingRules(at.Child("behavior", "scaleUp"), b.ScaleUp)
		p.scalingRules(at.Child("behavior", "scaleDown"), b.ScaleDown)
	}
	return p.list
}

func (p *problems) crossVersion(at path, r *autoscalingv2.CrossVersionObjectReference) {
	p.segment(at.Child("kind"), r.Kind)
	p.segment(at.Child("name"), r.Name)
}

func (p *problems) groupOf(at path, r *autoscalingv2.CrossVersionObjectReference, core bool) {
	if err := apiVersion(r.APIVersion, core); err != nil {
		p.invalid(at.Child("apiVersion"), r.APIVersion, "%s", err.Error())
	}
}

// apiVersion checks a version that has a group, unless the kind can be one of core.
func apiVersion(version string, core bool) error {
	gv, err := schema.ParseGroupVersion(version)
	if err == nil && gv.Group == "" && !core {
		return errors.New("apiVersion must specify API group")
	}
	return err
}

func (p *problems) scalingRules(at path, r *autoscalingv2.HPAScalingRules) {
	if r == nil {
		return
	}
	if w, at := r.StabilizationWindowSeconds, at.Child("stabilizationWindowSeconds"); w != nil {
		if *w < 0 {
			p.invalid(at, *w, "must be greater than or equal to zero")
		}
		if *w > maxScalingWindow {
			p.invalid(at, *w, "must be less than or equal to %d", maxScalingWindow)
		}
	}
	if r.SelectPolicy != nil {
		oneOf(p, at.Child("selectPolicy"), *r.SelectPolicy,
			autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect)
	}
	if len(r.Policies) == 0 {
		p.required(at.Child("policies"), "must specify at least one Policy")
	}
	for i, policy := range r.Policies {
		at := at.Child("policies").Index(i)
		oneOf(p, at.Child("type"), policy.Type, autoscalingv2.PodsScalingPolicy, autoscalingv2.PercentScalingPolicy)
		p.positive(at.Child("value"), int64(policy.Value))
		p.positive(at.Child("periodSeconds"), int64(policy.PeriodSeconds))
		if policy.PeriodSeconds > maxScalingPeriod {
			p.invalid(at.Child("periodSeconds"), policy.PeriodSeconds, "must be less than or equal to %d", maxScalingPeriod)
		}
	}
	if r.Tolerance != nil {
		p.quantityNotNegative(at.Child("tolerance"), *r.Tolerance)
	}
}

// metricSource is one of the fields of a metric. check is called if it is set.
type metricSource struct {
	kind  autoscalingv2.MetricSourceType
	name  string
	set   bool
	check func(at path)
}

func (p *problems) metric(at path, m *autoscalingv2.MetricSpec, o autoscalerOptions) {
	sources := []metricSource{
		{autoscalingv2.ObjectMetricSourceType, "object", m.Object != nil, func(at path) { p.objectMetric(at, m.Object, o) }},
		{autoscalingv2.ExternalMetricSourceType, "external", m.External != nil, func(at path) { p.externalMetric(at, m.External) }},
		{autoscalingv2.PodsMetricSourceType, "pods", m.Pods != nil, func(at path) { p.podsMetric(at, m.Pods) }},
		{autoscalingv2.ResourceMetricSourceType, "resource", m.Resource != nil, func(at path) {
			if m.Resource.Name == "" {
				p.required(at.Child("name"), "must specify a resource name")
			}
			p.resourceTarget(at.Child("target"), &m.Resource.Target)
		}},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil, func(at path) { p.containerMetric(at, m.ContainerResource) }},
	}
	var kinds []autoscalingv2.MetricSourceType
	set, known := 0, false
	for _, s := range sources {
		kinds = append(kinds, s.kind)
		at := at.Child(s.name)
		if s.set {
			if set++; set == 1 {
				s.check(at)
			}
		}
		if s.kind != m.Type {
			continue
		}
		known = true
		if !s.set {
			p.required(at, "must populate information for the given metric source")
		}
	}
	if m.Type == "" {
		p.required(at.Child("type"), "must specify a metric source type")
	}
	if !known {
		oneOf(p, at.Child("type"), m.Type, kinds...)
	}
	for _, s := range sources {
		if set > 1 && s.set && s.kind != m.Type {
			p.forbidden(at.Child(s.name), "must populate the given metric source only")
		}
	}
}

func (p *problems) objectMetric(at path, m *autoscalingv2.ObjectMetricSource, o autoscalerOptions) {
	object := at.Child("describedObject")
	p.crossVersion(object, &m.DescribedObject)
	if !o.anyObject {
		p.groupOf(object, &m.DescribedObject, true)
	}
	p.metricName(at.Child("metric"), m.Metric.Name)
	p.target(at.Child("target"), &m.Target)
	if m.Target.Value == nil && m.Target.AverageValue == nil {
		p.required(at.Child("target", "averageValue"), "must set either a target value or averageValue")
	}
}

func (p *problems) externalMetric(at path, m *autoscalingv2.ExternalMetricSource) {
	p.metricName(at.Child("metric"), m.Metric.Name)
	p.target(at.Child("target"), &m.Target)
	switch value, average := m.Target.Value, m.Target.AverageValue; {
	case value == nil && average == nil:
		p.required(at.Child("target", "averageValue"), "must set either a target value for metric or a per-pod target")
	case value != nil && average != nil:
		p.forbidden(at.Child("target", "value"), "may not set both a target value for metric and a per-pod target")
	}
}

func (p *problems) podsMetric(at path, m *autoscalingv2.PodsMetricSource) {
	p.metricName(at.Child("metric"), m.Metric.Name)
	p.target(at.Child("target"), &m.Target)
	if m.Target.AverageValue == nil {
		p.required(at.Child("target", "averageValue"), "must specify a positive target averageValue")
	}
}

func (p *problems) containerMetric(at path, m *autoscalingv2.ContainerResourceMetricSource) {
	if m.Name == "" {
		p.required(at.Child("name"), "must specify a resource name")
	} else {
		p.containerResourceName(at.Child("name"), m.Name)
	}
	if m.Container == "" {
		p.required(at.Child("container"), "must specify a container")
	} else {
		p.label(at.Child("container"), m.Container)
	}
	p.resourceTarget(at.Child("target"), &m.Target)
}

// resourceTarget checks a target of which a share of the request, or an amount, can be given.
func (p *problems) resourceTarget(at path, t *autoscalingv2.MetricTarget) {
	p.target(at, t)
	switch {
	case t.AverageUtilization == nil && t.AverageValue == nil:
		p.required(at.Child("averageUtilization"), "must set either a target raw value or a target utilization")
	case t.AverageUtilization != nil && t.AverageValue != nil:
		p.forbidden(at.Child("averageValue"), "may not set both a target raw value and a target utilization")
	}
}

func (p *problems) target(at path, t *autoscalingv2.MetricTarget) {
	if t.Type == "" {
		p.required(at.Child("type"), "must specify a metric target type")
	}
	if !slices.Contains([]autoscalingv2.MetricTargetType{
		autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType,
	}, t.Type) {
		p.invalid(at.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue")
	}
	if t.Value != nil && t.Value.Sign() != 1 {
		p.invalid(at.Child("value"), t.Value.String(), "must be positive")
	}
	if t.AverageValue != nil && t.AverageValue.Sign() != 1 {
		p.invalid(at.Child("averageValue"), t.AverageValue.String(), "must be positive")
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		p.invalid(at.Child("averageUtilization"), *t.AverageUtilization, "must be greater than 0")
	}
}

func (p *problems) metricName(at path, name string) {
	if name == "" {
		p.required(at.Child("name"), "must specify a metric name")
		return
	}
	matches(p, at.Child("name"), name, content.IsPathSegmentName(name))
}

// HorizontalPodAutoscalerStatus checks the status of an autoscaler.
func HorizontalPodAutoscalerStatus(a *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	p := &problems{}
	p.counts(field.NewPath("status"), counted("currentReplicas", &a.Status.CurrentReplicas), counted("desiredReplicas", &a.Status.DesiredReplicas))
	return p.list
}
