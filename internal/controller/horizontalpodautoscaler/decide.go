package horizontalpodautoscaler

import (
	"fmt"
	"slices"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// event is what is told of an autoscaler.
type event struct{ kind, reason, message string }

// plan is what becomes of an autoscaler: first the size of its target, if it changes, then its status.
type plan struct {
	status  autoscalingv2.HorizontalPodAutoscalerStatus
	events  []event
	history history
	current int32
	size    int32
	reason  string // of a change of the size
	bounds  bounds
	failed  error // what the events and conditions tell, for the log
}

func (p *plan) resizes() bool { return p.failed == nil && p.size != p.current }

func (p *plan) warn(reason, message string) {
	p.events = append(p.events, event{v1.EventTypeWarning, reason, message})
}

// observed is an autoscaler at a moment.
type observed struct {
	*Options
	hpa     *autoscalingv2.HorizontalPodAutoscaler
	scale   *autoscalingv1.Scale
	pods    []*v1.Pod
	history history
	now     time.Time
}

func (o *observed) least() int32 {
	if n := o.hpa.Spec.MinReplicas; n != nil {
		return *n
	}
	return 1
}

func (o *observed) tolerance() tolerance {
	t := tolerance{o.Tolerance, o.Tolerance}
	b := o.hpa.Spec.Behavior
	if b != nil && b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
		t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
	}
	if b != nil && b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
		t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
	}
	return t
}

// begin returns a plan that changes nothing but the status.
func begin(hpa *autoscalingv2.HorizontalPodAutoscaler, h history) *plan {
	p := &plan{status: *hpa.Status.DeepCopy(), history: h}
	if hpa.Generation > 0 {
		p.status.ObservedGeneration = new(hpa.Generation)
	}
	return p
}

// unreachable is the plan for an autoscaler whose target has no size that can be read.
func unreachable(hpa *autoscalingv2.HorizontalPodAutoscaler, h history, now time.Time, err error) *plan {
	p := begin(hpa, h)
	p.failed = err
	p.warn("FailedGetScale", err.Error())
	p.set(now, autoscalingv2.AbleToScale, v1.ConditionFalse, told{"FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err)})
	return p
}

// zeroed says that the autoscaler itself set the target to zero: somebody else who does switches it off.
func (p *plan) zeroed(now time.Time, yes bool) {
	status, why := v1.ConditionFalse, told{"NotScaledToZero", "the HPA controller did not scale the workload to zero"}
	if yes {
		status, why = v1.ConditionTrue, told{"ScaledToZero", "the HPA controller scaled the workload to zero"}
	}
	p.set(now, autoscalingv2.ScaledToZero, status, why)
}

func isZeroed(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(hpa.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero && c.Status == v1.ConditionTrue
	})
}

// wakes reports whether a target of no pods may get some: only if it was this autoscaler that took them, and either a metric
// tells something without pods, or there have to be some by now.
func wakes(hpa *autoscalingv2.HorizontalPodAutoscaler, least int32) bool {
	outside := slices.ContainsFunc(hpa.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
	return isZeroed(hpa) && (outside || least > 0)
}

// start returns the plan so far, and whether metrics decide the rest of it: not if somebody set the target
// to zero, which switches the autoscaler off, or its size is out of range.
func start(o *observed) (p *plan, byMetrics bool) {
	p = begin(o.hpa, o.history)
	p.current = o.scale.Spec.Replicas
	p.size = p.current
	if len(p.history.recommended) == 0 {
		p.history.recommended = []sized{{p.current, o.now}}
	}
	p.bounds = bounds{p.current, o.least(), o.hpa.Spec.MaxReplicas, o.hpa.Spec.Behavior, o.Window, o.now}
	p.set(o.now, autoscalingv2.AbleToScale, v1.ConditionTrue, told{"SucceededGetScale", "the HPA controller was able to get the target's current scale"})
	if p.current > 0 && isZeroed(o.hpa) {
		p.zeroed(o.now, false) // somebody else gave it pods
	}
	switch {
	case p.current == 0 && !wakes(o.hpa, p.bounds.least):
		p.set(o.now, autoscalingv2.ScalingActive, v1.ConditionFalse, told{"ScalingDisabled", "scaling is disabled since the replica count of the target is zero"})
	case p.current > p.bounds.most:
		p.size, p.reason = p.bounds.most, "Current number of replicas above Spec.MaxReplicas"
	case p.current < p.bounds.least:
		p.size, p.reason = p.bounds.least, "Current number of replicas below Spec.MinReplicas"
	default:
		return p, true
	}
	p.counts(p.size, nil)
	return p, false
}

// counts notes the sizes and what the metrics are.
func (p *plan) counts(desired int32, current []autoscalingv2.MetricStatus) {
	p.status.CurrentReplicas, p.status.DesiredReplicas, p.status.CurrentMetrics = p.current, desired, current
}

// inactive ends a plan that lacks what the size depends on.
func (p *plan) inactive(now time.Time, why told, err error) {
	p.set(now, autoscalingv2.ScalingActive, v1.ConditionFalse, why)
	p.failed = err
	p.counts(p.status.DesiredReplicas, nil)
	p.warn("FailedComputeMetricsReplicas", err.Error())
}

// byMetrics fits what the metrics propose into the bounds. The largest proposal counts; if a metric
// is not known the target does not shrink.
func (p *plan) byMetrics(o *observed, proposals []proposal) {
	var best *proposal
	var first *proposal
	statuses, failed := make([]autoscalingv2.MetricStatus, len(proposals)), 0
	for i := range proposals {
		c := &proposals[i]
		statuses[i] = c.status
		switch {
		case c.err != nil:
			p.warn(c.reason, c.detail.Error())
			if failed++; failed == 1 {
				first = c
			}
		case best == nil || c.replicas > best.replicas:
			best = c
		}
	}
	if failed > 0 && (best == nil || best.replicas < p.current) {
		err := fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", failed, len(proposals), first.err)
		p.inactive(o.now, told{first.reason, fmt.Sprintf("the HPA was unable to compute the replica count: %v", first.detail)}, err)
		p.status.CurrentMetrics = statuses
		return
	}
	if best == nil {
		return // the API server gives every autoscaler a metric
	}
	p.set(o.now, autoscalingv2.ScalingActive, v1.ConditionTrue, told{"ValidMetricFound", "the HPA was able to successfully calculate a replica count from " + best.metric})
	switch {
	case best.replicas > p.current:
		p.reason = best.metric + " above target"
	case best.replicas < p.current:
		p.reason = "All metrics below target"
	}
	var v verdict
	v, p.history = normalize(p.bounds, p.history, best.replicas)
	p.size = v.size
	p.set(o.now, autoscalingv2.AbleToScale, v1.ConditionTrue, v.stable)
	limited := v1.ConditionFalse
	if v.limited {
		limited = v1.ConditionTrue
	}
	p.set(o.now, autoscalingv2.ScalingLimited, limited, v.limit)
	p.counts(p.size, statuses)
}

// resized notes that the target has got its size.
func (p *plan) resized(now time.Time) {
	p.set(now, autoscalingv2.AbleToScale, v1.ConditionTrue, told{"SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", p.size)})
	p.events = append(p.events, event{v1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", p.size, p.reason)})
	p.zeroed(now, p.size == 0)
	p.history = p.history.scaled(p.bounds, p.size)
	p.status.LastScaleTime = new(metav1.NewTime(now))
}

// notResized notes that the target could not be given its size.
func (p *plan) notResized(now time.Time, was int32, err error) {
	p.set(now, autoscalingv2.AbleToScale, v1.ConditionFalse, told{"FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err)})
	if p.size == 0 {
		p.zeroed(now, false)
	}
	p.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", p.size, p.reason, err))
	p.status.DesiredReplicas = was
}

// set sets a condition.
func (p *plan) set(now time.Time, kind autoscalingv2.HorizontalPodAutoscalerConditionType, status v1.ConditionStatus, t told) {
	for i := range p.status.Conditions {
		if c := &p.status.Conditions[i]; c.Type == kind {
			if c.Status != status {
				c.LastTransitionTime = metav1.NewTime(now)
			}
			c.Status, c.Reason, c.Message, c.ObservedGeneration = status, t.reason, t.message, p.status.ObservedGeneration
			return
		}
	}
	p.status.Conditions = append(p.status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
		Type: kind, Status: status, Reason: t.reason, Message: t.message,
		LastTransitionTime: metav1.NewTime(now), ObservedGeneration: p.status.ObservedGeneration,
	})
}

// news tells whether the status has to be written.
func (p *plan) news(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	return !apiequality.Semantic.DeepEqual(p.status, hpa.Status)
}
