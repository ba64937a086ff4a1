package scheme

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The metrics of autoscaling/v1's annotations. Its targets have no type: which of the fields is set
// tells, and where v1's field is not a pointer, a zero stands for a value that is not there.

func metricToV1(in *autoscalingv2.MetricSpec) autoscalingv1.MetricSpec {
	out := autoscalingv1.MetricSpec{Type: autoscalingv1.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv1.ObjectMetricSource{
			Target:     autoscalingv1.CrossVersionObjectReference(m.DescribedObject),
			MetricName: m.Metric.Name, Selector: m.Metric.Selector,
			TargetValue: value(m.Target.Value), AverageValue: m.Target.AverageValue,
		}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv1.PodsMetricSource{
			MetricName: m.Metric.Name, Selector: m.Metric.Selector, TargetAverageValue: value(m.Target.AverageValue),
		}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv1.ResourceMetricSource{
			Name: m.Name, TargetAverageUtilization: m.Target.AverageUtilization, TargetAverageValue: m.Target.AverageValue,
		}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricSource{
			Name: m.Name, Container: m.Container,
			TargetAverageUtilization: m.Target.AverageUtilization, TargetAverageValue: m.Target.AverageValue,
		}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv1.ExternalMetricSource{
			MetricName: m.Metric.Name, MetricSelector: m.Metric.Selector,
			TargetValue: m.Target.Value, TargetAverageValue: m.Target.AverageValue,
		}
	}
	return out
}

func metricFromV1(in *autoscalingv1.MetricSpec) autoscalingv2.MetricSpec {
	out := autoscalingv2.MetricSpec{Type: autoscalingv2.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference(m.Target),
			Metric:          autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Target:          objectTarget(m),
		}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &m.TargetAverageValue},
		}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv2.ResourceMetricSource{Name: m.Name, Target: resourceTarget(m.TargetAverageUtilization, m.TargetAverageValue)}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricSource{
			Name: m.Name, Container: m.Container, Target: resourceTarget(m.TargetAverageUtilization, m.TargetAverageValue),
		}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.MetricSelector},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: m.TargetValue, AverageValue: m.TargetAverageValue},
		}
		if m.TargetValue == nil {
			out.External.Target.Type = autoscalingv2.AverageValueMetricType
		}
	}
	return out
}

func objectTarget(m *autoscalingv1.ObjectMetricSource) autoscalingv2.MetricTarget {
	if m.AverageValue == nil {
		return autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &m.TargetValue}
	}
	out := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: m.AverageValue}
	if !m.TargetValue.IsZero() {
		out.Value = &m.TargetValue
	}
	return out
}

func resourceTarget(utilization *int32, average *resource.Quantity) autoscalingv2.MetricTarget {
	out := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: utilization, AverageValue: average}
	if utilization == nil {
		out.Type = autoscalingv2.AverageValueMetricType
	}
	return out
}

// value returns what q points to, or zero.
func value(q *resource.Quantity) resource.Quantity {
	if q == nil {
		return resource.Quantity{}
	}
	return *q
}

func currentToV1(in *autoscalingv2.MetricStatus) autoscalingv1.MetricStatus {
	out := autoscalingv1.MetricStatus{Type: autoscalingv1.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv1.ObjectMetricStatus{
			Target:     autoscalingv1.CrossVersionObjectReference(m.DescribedObject),
			MetricName: m.Metric.Name, Selector: m.Metric.Selector,
			CurrentValue: value(m.Current.Value), AverageValue: m.Current.AverageValue,
		}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv1.PodsMetricStatus{
			MetricName: m.Metric.Name, Selector: m.Metric.Selector, CurrentAverageValue: value(m.Current.AverageValue),
		}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv1.ResourceMetricStatus{
			Name: m.Name, CurrentAverageUtilization: m.Current.AverageUtilization, CurrentAverageValue: value(m.Current.AverageValue),
		}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricStatus{
			Name: m.Name, Container: m.Container,
			CurrentAverageUtilization: m.Current.AverageUtilization, CurrentAverageValue: value(m.Current.AverageValue),
		}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv1.ExternalMetricStatus{
			MetricName: m.Metric.Name, MetricSelector: m.Metric.Selector,
			CurrentValue: value(m.Current.Value), CurrentAverageValue: m.Current.AverageValue,
		}
	}
	return out
}

func currentFromV1(in *autoscalingv1.MetricStatus) autoscalingv2.MetricStatus {
	type now = autoscalingv2.MetricValueStatus
	out := autoscalingv2.MetricStatus{Type: autoscalingv2.MetricSourceType(in.Type)}
	if m := in.Object; m != nil {
		out.Object = &autoscalingv2.ObjectMetricStatus{
			DescribedObject: autoscalingv2.CrossVersionObjectReference(m.Target),
			Metric:          autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Current:         now{Value: &m.CurrentValue, AverageValue: m.AverageValue},
		}
	}
	if m := in.Pods; m != nil {
		out.Pods = &autoscalingv2.PodsMetricStatus{
			Metric:  autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.Selector},
			Current: now{AverageValue: &m.CurrentAverageValue},
		}
	}
	if m := in.Resource; m != nil {
		out.Resource = &autoscalingv2.ResourceMetricStatus{
			Name: m.Name, Current: now{AverageValue: &m.CurrentAverageValue, AverageUtilization: m.CurrentAverageUtilization},
		}
	}
	if m := in.ContainerResource; m != nil {
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{
			Name: m.Name, Container: m.Container,
			Current: now{AverageValue: &m.CurrentAverageValue, AverageUtilization: m.CurrentAverageUtilization},
		}
	}
	if m := in.External; m != nil {
		out.External = &autoscalingv2.ExternalMetricStatus{
			Metric:  autoscalingv2.MetricIdentifier{Name: m.MetricName, Selector: m.MetricSelector},
			Current: now{Value: &m.CurrentValue, AverageValue: m.CurrentAverageValue},
		}
	}
	return out
}
