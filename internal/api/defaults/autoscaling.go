package defaults

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// CPUUtilization is how much of the requested CPU pods use on average, in percent, under an
// autoscaler that names no metric.
const CPUUtilization = 80

// CPUTarget returns the metric of CPU utilization in percent.
func CPUTarget(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
		},
	}
}

// HorizontalPodAutoscalerV1 asks for at least one replica. The metric is a matter of the conversion to
// v2, because it may be in an annotation.
func HorizontalPodAutoscalerV1(a *autoscalingv1.HorizontalPodAutoscaler) {
	setPtr(&a.Spec.MinReplicas, 1)
}

// HorizontalPodAutoscaler asks for at least one replica, and a CPU utilization. If there are any rules
// of behaviour, what they leave open is filled in: to double the pods every 15 seconds, or add four of
// them, and to remove them without a limit.
func HorizontalPodAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler) {
	setPtr(&a.Spec.MinReplicas, 1)
	if len(a.Spec.Metrics) == 0 {
		a.Spec.Metrics = []autoscalingv2.MetricSpec{CPUTarget(CPUUtilization)}
	}
	b := a.Spec.Behavior
	if b == nil {
		return
	}
	const period = 15
	percent := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: period}
	scalingRules(&b.ScaleUp, autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: period}, percent)
	setPtr(&b.ScaleUp.StabilizationWindowSeconds, 0)
	scalingRules(&b.ScaleDown, percent) // its window is an option of the controller
}

func scalingRules(rules **autoscalingv2.HPAScalingRules, policies ...autoscalingv2.HPAScalingPolicy) {
	setPtr(rules, autoscalingv2.HPAScalingRules{})
	setPtr(&(*rules).SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if (*rules).Policies == nil {
		(*rules).Policies = policies
	}
}
