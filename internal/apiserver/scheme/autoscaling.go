package scheme

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"wherry.dev/internal/api/defaults"
)

// The annotations in which autoscaling/v1 carries what it has no field for. They are only in v1's
// view of an object: what is stored has fields.
const (
	metricsAnnotation    = "autoscaling.alpha.kubernetes.io/metrics"
	currentAnnotation    = "autoscaling.alpha.kubernetes.io/current-metrics"
	behaviorAnnotation   = "autoscaling.alpha.kubernetes.io/behavior"
	conditionsAnnotation = "autoscaling.alpha.kubernetes.io/conditions"
)

var autoscalerAnnotations = []string{
	metricsAnnotation, currentAnnotation, behaviorAnnotation, conditionsAnnotation,
	"autoscaling.alpha.kubernetes.io/scale-down-tolerance", "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
}

// addAutoscalers lets HorizontalPodAutoscalers be served in autoscaling/v1, too. Their hub is v2.
func addAutoscalers(s *runtime.Scheme) error {
	return errors.Join(
		addConversion(s, autoscalerToV1), addConversion(s, autoscalerFromV1),
		addConversion(s, func(in *autoscalingv2.HorizontalPodAutoscalerList, out *autoscalingv1.HorizontalPodAutoscalerList) (err error) {
			out.ListMeta = in.ListMeta
			out.Items, err = each(in.Items, autoscalerToV1)
			return err
		}),
		addConversion(s, func(in *autoscalingv1.HorizontalPodAutoscalerList, out *autoscalingv2.HorizontalPodAutoscalerList) (err error) {
			out.ListMeta = in.ListMeta
			out.Items, err = each(in.Items, autoscalerFromV1)
			return err
		}),
	)
}

// DropAutoscalerAnnotations removes the annotations that only autoscaling/v1 shows. It replaces the
// map of an object that has any.
func DropAutoscalerAnnotations(a *autoscalingv2.HorizontalPodAutoscaler) {
	a.Annotations = withoutAutoscaling(a.Annotations)
}

func withoutAutoscaling(in map[string]string) map[string]string {
	out := in
	for _, name := range autoscalerAnnotations {
		if _, ok := out[name]; !ok {
			continue
		}
		if len(out) == len(in) {
			out = maps.Clone(in)
		}
		delete(out, name)
	}
	return out
}

// targetsCPU tells whether v1 has a field for the metric.
func targetsCPU(m *autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil && m.Resource.Name == corev1.ResourceCPU &&
		m.Resource.Target.AverageUtilization != nil
}

// autoscalerToV1 puts the first target for CPU utilization into its field, and all else that v1 lacks
// into annotations.
func autoscalerToV1(in *autoscalingv2.HorizontalPodAutoscaler, out *autoscalingv1.HorizontalPodAutoscaler) error {
	*out = autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
			MinReplicas:    in.Spec.MinReplicas,
			MaxReplicas:    in.Spec.MaxReplicas,
		},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{
			ObservedGeneration: in.Status.ObservedGeneration,
			LastScaleTime:      in.Status.LastScaleTime,
			CurrentReplicas:    in.Status.CurrentReplicas,
			DesiredReplicas:    in.Status.DesiredReplicas,
		},
	}
	var others []autoscalingv1.MetricSpec
	for i := range in.Spec.Metrics {
		m := &in.Spec.Metrics[i]
		if out.Spec.TargetCPUUtilizationPercentage == nil && targetsCPU(m) {
			out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
			continue
		}
		others = append(others, metricToV1(m))
	}
	var current []autoscalingv1.MetricStatus
	for i := range in.Status.CurrentMetrics {
		m := &in.Status.CurrentMetrics[i]
		if r := m.Resource; m.Type == autoscalingv2.ResourceMetricSourceType && r != nil && r.Name == corev1.ResourceCPU && r.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = r.Current.AverageUtilization
		}
		// Also that of CPU, because its raw value has no field.
		current = append(current, currentToV1(m))
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range in.Status.Conditions {
		conditions = append(conditions, conditionToV1(c))
	}
	out.Annotations = withoutAutoscaling(in.Annotations)
	a := annotator{obj: out, shared: true}
	a.set(metricsAnnotation, others, len(others) > 0)
	a.set(currentAnnotation, current, len(current) > 0)
	a.set(behaviorAnnotation, behaviorToV1(in.Spec.Behavior), in.Spec.Behavior != nil)
	a.set(conditionsAnnotation, conditions, len(conditions) > 0)
	return a.err
}

// annotator writes values as JSON into annotations of an object. It copies a map that is shared
// before it writes.
type annotator struct {
	obj    *autoscalingv1.HorizontalPodAutoscaler
	shared bool
	err    error
}

func (a *annotator) set(name string, value any, present bool) {
	if !present {
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		a.err = errors.Join(a.err, fmt.Errorf("annotation %s: %w", name, err))
		return
	}
	if a.shared {
		copied := make(map[string]string, len(a.obj.Annotations)+1)
		maps.Copy(copied, a.obj.Annotations)
		a.obj.Annotations, a.shared = copied, false
	}
	a.obj.Annotations[name] = string(text)
}

// autoscalerFromV1 reads what autoscalerToV1 writes. An annotation that cannot be read is dropped, as
// upstream does. Without any metric the target is the default one.
func autoscalerFromV1(in *autoscalingv1.HorizontalPodAutoscaler, out *autoscalingv2.HorizontalPodAutoscaler) error {
	*out = autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
			MinReplicas:    in.Spec.MinReplicas,
			MaxReplicas:    in.Spec.MaxReplicas,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: in.Status.ObservedGeneration,
			LastScaleTime:      in.Status.LastScaleTime,
			CurrentReplicas:    in.Status.CurrentReplicas,
			DesiredReplicas:    in.Status.DesiredReplicas,
		},
	}
	for _, m := range annotation[[]autoscalingv1.MetricSpec](in, metricsAnnotation) {
		out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&m))
	}
	if n := in.Spec.TargetCPUUtilizationPercentage; n != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, defaults.CPUTarget(*n))
	}
	if len(out.Spec.Metrics) == 0 {
		out.Spec.Metrics = []autoscalingv2.MetricSpec{defaults.CPUTarget(defaults.CPUUtilization)}
	}
	if b := annotation[behavior](in, behaviorAnnotation); b != (behavior{}) {
		out.Spec.Behavior = behaviorFromV1(&b)
	}
	if n := in.Status.CurrentCPUUtilizationPercentage; n != nil {
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{
				Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: n},
			},
		}}
	}
	if current := annotation[[]autoscalingv1.MetricStatus](in, currentAnnotation); current != nil {
		out.Status.CurrentMetrics = nil
		for _, m := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, currentFromV1(&m))
		}
	}
	for _, c := range annotation[[]autoscalingv1.HorizontalPodAutoscalerCondition](in, conditionsAnnotation) {
		out.Status.Conditions = append(out.Status.Conditions, conditionFromV1(c))
	}
	DropAutoscalerAnnotations(out)
	return nil
}

// annotation returns what an annotation holds, or the zero value.
func annotation[T any](a *autoscalingv1.HorizontalPodAutoscaler, name string) T {
	var out, zero T
	if err := json.Unmarshal([]byte(a.Annotations[name]), &out); err != nil {
		return zero
	}
	return out
}

// behavior and scalingRules are the JSON of the annotation, which upstream writes without names of
// its own for the fields.
type behavior struct{ ScaleUp, ScaleDown *scalingRules }

type scalingRules struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []scalingPolicy
	Tolerance                  *resource.Quantity
}

type scalingPolicy struct {
	Type                 autoscalingv2.HPAScalingPolicyType
	Value, PeriodSeconds int32
}

func behaviorToV1(in *autoscalingv2.HorizontalPodAutoscalerBehavior) *behavior {
	if in == nil {
		return nil
	}
	rules := func(in *autoscalingv2.HPAScalingRules) *scalingRules {
		if in == nil {
			return nil
		}
		out := &scalingRules{in.StabilizationWindowSeconds, in.SelectPolicy, nil, in.Tolerance}
		for _, p := range in.Policies {
			out.Policies = append(out.Policies, scalingPolicy{p.Type, p.Value, p.PeriodSeconds})
		}
		return out
	}
	return &behavior{rules(in.ScaleUp), rules(in.ScaleDown)}
}

func behaviorFromV1(in *behavior) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	rules := func(in *scalingRules) *autoscalingv2.HPAScalingRules {
		if in == nil {
			return nil
		}
		out := &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: in.StabilizationWindowSeconds, SelectPolicy: in.SelectPolicy, Tolerance: in.Tolerance,
		}
		for _, p := range in.Policies {
			out.Policies = append(out.Policies, autoscalingv2.HPAScalingPolicy{Type: p.Type, Value: p.Value, PeriodSeconds: p.PeriodSeconds})
		}
		return out
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(in.ScaleUp), ScaleDown: rules(in.ScaleDown)}
}

func conditionToV1(c autoscalingv2.HorizontalPodAutoscalerCondition) autoscalingv1.HorizontalPodAutoscalerCondition {
	return autoscalingv1.HorizontalPodAutoscalerCondition{
		Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
		Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration,
	}
}

func conditionFromV1(c autoscalingv1.HorizontalPodAutoscalerCondition) autoscalingv2.HorizontalPodAutoscalerCondition {
	return autoscalingv2.HorizontalPodAutoscalerCondition{
		Type: autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
		Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration,
	}
}
