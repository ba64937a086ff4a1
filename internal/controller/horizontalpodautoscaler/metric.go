package horizontalpodautoscaler

import (
	"errors"
	"fmt"
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reading is what is known of a metric: of each pod, or values of something else.
type reading struct {
	samples map[string]sample
	values  []int64
	err     error
}

// proposal is the size that a metric asks for.
type proposal struct {
	replicas int32
	metric   string // in words
	status   autoscalingv2.MetricStatus
	reason   string // if it cannot be known
	detail   error  // what the condition and the event say
	err      error  // detail, and whose it is
}

// propose returns the size that a metric asks for.
func propose(o *observed, m *autoscalingv2.MetricSpec, r *reading) proposal {
	switch m.Type {
	case autoscalingv2.ResourceMetricSourceType:
		src := m.Resource
		p := o.resource(&src.Target, src.Name, "", r)
		p.status.Resource = &autoscalingv2.ResourceMetricStatus{Name: src.Name, Current: p.value}
		return p.finish(m.Type, "FailedGetResourceMetric", fmt.Sprintf("failed to get %s resource metric value", src.Name))
	case autoscalingv2.ContainerResourceMetricSourceType:
		src := m.ContainerResource
		p := o.resource(&src.Target, src.Name, src.Container, r)
		p.status.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{Name: src.Name, Container: src.Container, Current: p.value}
		return p.finish(m.Type, "FailedGetContainerResourceMetric", fmt.Sprintf("failed to get %s container metric value", src.Container))
	case autoscalingv2.PodsMetricSourceType:
		p := o.podsMetric(m.Pods, r)
		p.status.Pods = &autoscalingv2.PodsMetricStatus{Metric: m.Pods.Metric, Current: p.value}
		return p.finish(m.Type, "FailedGetPodsMetric", "failed to get pods metric value")
	case autoscalingv2.ObjectMetricSourceType:
		p := o.objectMetric(m.Object, r)
		p.status.Object = &autoscalingv2.ObjectMetricStatus{DescribedObject: m.Object.DescribedObject, Metric: m.Object.Metric, Current: p.value}
		return p.finish(m.Type, "FailedGetObjectMetric", "failed to get object metric value")
	case autoscalingv2.ExternalMetricSourceType:
		p := o.externalMetric(m.External, r)
		p.status.External = &autoscalingv2.ExternalMetricStatus{Metric: m.External.Metric, Current: p.value}
		return p.finish(m.Type, "FailedGetExternalMetric", fmt.Sprintf("failed to get %s external metric value", m.External.Metric.Name))
	}
	err := fmt.Errorf("unknown metric source type %q", m.Type)
	return proposal{reason: "InvalidMetricSourceType", detail: err, err: err}
}

// draft is a proposal in the making.
type draft struct {
	proposal
	value autoscalingv2.MetricValueStatus
}

func failed(format string, args ...any) draft {
	return draft{proposal: proposal{detail: fmt.Errorf(format, args...)}}
}

// finish returns the proposal, or what is wrong: then it has no status.
func (d draft) finish(kind autoscalingv2.MetricSourceType, reason, whose string) proposal {
	if d.detail != nil {
		return proposal{reason: reason, detail: d.detail, err: fmt.Errorf("%s: %w", whose, d.detail)}
	}
	d.status.Type = kind
	return d.proposal
}

// perPod returns the metric of the pods that r read.
func (o *observed) perPod(r *reading, cpu bool, target int64) *perPod {
	m := &perPod{Options: o.Options, pods: o.pods, samples: r.samples, cpu: cpu, current: o.scale.Spec.Replicas, tolerance: o.tolerance(), now: o.now}
	m.ratio = func(s map[string]sample) (float64, error) { return float64(average(s)) / float64(target), nil }
	m.full = func(string) int64 { return target }
	return m
}

func (o *observed) resource(t *autoscalingv2.MetricTarget, name v1.ResourceName, container string, r *reading) draft {
	what := "utilization"
	if t.AverageValue != nil {
		what = "usage"
	}
	if r.err != nil {
		return failed("failed to get %s %s: unable to get metrics for resource %s: %w", name, what, name, r.err)
	}
	var d draft
	var err error
	cpu := name == v1.ResourceCPU
	switch {
	case t.AverageValue != nil:
		m := o.perPod(r, cpu, t.AverageValue.MilliValue())
		d.metric = fmt.Sprintf("%s resource", name)
		d.replicas, err = m.replicas(func(s map[string]sample) { d.value.AverageValue = amount(name, average(s)) })
	case t.AverageUtilization != nil:
		d, err = o.utilization(name, container, *t.AverageUtilization, o.perPod(r, cpu, 0))
	default:
		return failed("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
	}
	if err != nil {
		return failed("failed to get %s %s: %w", name, what, err)
	}
	return d
}

func (o *observed) utilization(name v1.ResourceName, container string, target int32, m *perPod) (draft, error) {
	d := draft{proposal: proposal{metric: fmt.Sprintf("%s resource utilization (percentage of request)", name)}}
	if container != "" {
		d.metric = fmt.Sprintf("%s container resource utilization (percentage of request)", name)
	}
	if len(o.pods) == 0 {
		return d, errNoPods
	}
	// What pods without metrics of their own request does not matter before there are any.
	requests, missing := requestsOf(o.pods, container, name)
	m.ratio = func(s map[string]sample) (float64, error) {
		if missing != nil {
			return 0, missing
		}
		u, err := utilization(s, requests)
		return float64(u.percent) / float64(target), err
	}
	m.full = func(pod string) int64 { return requests[pod] * int64(max(100, target)) / 100 }
	var err error
	d.replicas, err = m.replicas(func(s map[string]sample) {
		if u, err := utilization(s, requests); err == nil {
			d.value = autoscalingv2.MetricValueStatus{AverageUtilization: &u.percent, AverageValue: amount(name, u.average)}
		}
	})
	return d, err
}

// amount returns a number of thousandths as it is usual for the resource.
func amount(name v1.ResourceName, milli int64) *resource.Quantity {
	if name == v1.ResourceMemory {
		return resource.NewMilliQuantity(milli, resource.BinarySI)
	}
	return milliUnits(milli)
}

func milliUnits(n int64) *resource.Quantity { return resource.NewMilliQuantity(n, resource.DecimalSI) }

func (o *observed) podsMetric(src *autoscalingv2.PodsMetricSource, r *reading) draft {
	if r.err != nil {
		return failed("unable to get metric %s: %w", src.Metric.Name, r.err)
	}
	if src.Target.AverageValue == nil {
		return failed("invalid pods metric source: no average value target was set")
	}
	d := draft{proposal: proposal{metric: "pods metric " + src.Metric.Name}}
	var err error
	d.replicas, err = o.perPod(r, false, src.Target.AverageValue.MilliValue()).replicas(func(s map[string]sample) {
		d.value.AverageValue = milliUnits(average(s))
	})
	if err != nil {
		return draft{proposal: proposal{detail: err}}
	}
	return d
}

func (o *observed) objectMetric(src *autoscalingv2.ObjectMetricSource, r *reading) draft {
	ref := src.DescribedObject
	perPod := src.Target.Type == autoscalingv2.AverageValueMetricType && src.Target.AverageValue != nil
	whole := src.Target.Type == autoscalingv2.ValueMetricType && src.Target.Value != nil
	if r.err != nil {
		err := fmt.Errorf("unable to get metric %s on %s %s/%s: %w", src.Metric.Name, ref.Kind, o.hpa.Namespace, ref.Name, r.err)
		if perPod {
			return failed("failed to get %s object metric: %w", src.Metric.Name, err)
		}
		return draft{proposal: proposal{detail: err}}
	}
	switch {
	case whole:
		d, err := o.whole(total(r.values), src.Target.Value.MilliValue())
		d.metric = fmt.Sprintf("%s metric %s", ref.Kind, src.Metric.Name)
		d.detail = err
		return d
	case perPod:
		d := o.shared(total(r.values), src.Target.AverageValue.MilliValue())
		d.metric = outsideMetric(&src.Metric)
		return d
	}
	return failed("invalid object metric source: neither a value target nor an average value target was set")
}

func (o *observed) externalMetric(src *autoscalingv2.ExternalMetricSource, r *reading) draft {
	if r.err != nil {
		err := fmt.Errorf("unable to get external metric %s/%s/%+v: %w", o.hpa.Namespace, src.Metric.Name, src.Metric.Selector, r.err)
		if src.Target.AverageValue != nil {
			return failed("failed to get %s external metric: %w", src.Metric.Name, err)
		}
		return failed("failed to get external metric %s: %w", src.Metric.Name, err)
	}
	switch {
	case src.Target.AverageValue != nil:
		d := o.shared(total(r.values), src.Target.AverageValue.MilliValue())
		d.metric = outsideMetric(&src.Metric)
		return d
	case src.Target.Value != nil:
		d, err := o.whole(total(r.values), src.Target.Value.MilliValue())
		if err != nil {
			return failed("failed to get external metric %s: %w", src.Metric.Name, err)
		}
		d.metric = outsideMetric(&src.Metric)
		return d
	}
	return failed("invalid external metric source: neither a value target nor an average value target was set")
}

func outsideMetric(m *autoscalingv2.MetricIdentifier) string {
	return fmt.Sprintf("external metric %s(%+v)", m.Name, m.Selector)
}

// whole returns the size with which a value that falls as the target grows would be met.
func (o *observed) whole(value, target int64) (draft, error) {
	d := draft{value: autoscalingv2.MetricValueStatus{Value: milliUnits(value)}}
	ratio := float64(value) / float64(target)
	if d.replicas = o.scale.Spec.Replicas; d.replicas == 0 {
		d.replicas = ceil(ratio)
		return d, nil
	}
	if o.tolerance().holds(ratio) {
		return d, nil
	}
	n, err := atWork(o.pods)
	d.replicas = ceil(ratio * float64(n))
	return d, err
}

// shared returns the size with which each pod's part of a value would be met.
func (o *observed) shared(value, target int64) draft {
	has := o.scale.Status.Replicas
	ratio := float64(value) / (float64(target) * float64(has))
	d := draft{proposal: proposal{replicas: has}}
	if !o.tolerance().holds(ratio) {
		d.replicas = ceil(float64(value) / float64(target))
	}
	part := value
	if value != math.MaxInt64 {
		part = ceilDiv(value, int64(max(1, has)))
	}
	d.value.AverageValue = milliUnits(part)
	return d
}

// selectorOf returns the selector by which a metric's values are chosen, if it has one that is valid.
func selectorOf(m *autoscalingv2.MetricSpec) (*metav1.LabelSelector, error) {
	var s *metav1.LabelSelector
	switch {
	case m.Pods != nil:
		s = m.Pods.Metric.Selector
	case m.Object != nil:
		s = m.Object.Metric.Selector
	case m.External != nil:
		s = m.External.Metric.Selector
	default:
		return nil, errors.New("not a metric with a selector")
	}
	_, err := metav1.LabelSelectorAsSelector(s)
	return s, err
}
