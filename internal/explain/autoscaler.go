package explain

import (
	"fmt"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wherry.dev/internal/api/report"
)

// AutoscalerFacts is what is known about a HorizontalPodAutoscaler.
type AutoscalerFacts struct {
	About
	Autoscaler *autoscalingv2.HorizontalPodAutoscaler
}

// scaling builds the explanation of a HorizontalPodAutoscaler.
type scaling struct {
	findings
	*autoscalingv2.HorizontalPodAutoscaler
}

// Autoscaler explains why a HorizontalPodAutoscaler does not scale.
func Autoscaler(f AutoscalerFacts) Explanation {
	h := f.Autoscaler
	e := &scaling{findings: newFindings("HorizontalPodAutoscaler", h, f.About), HorizontalPodAutoscaler: h}
	if e.deleted(h) {
		return e.out
	}
	target := strings.ToLower(h.Spec.ScaleTargetRef.Kind) + "/" + h.Spec.ScaleTargetRef.Name
	e.out.State = fmt.Sprintf("%s has %s of %d to %d", target, count(h.Status.CurrentReplicas, "replica"), orOne(h.Spec.MinReplicas), h.Spec.MaxReplicas)
	if len(h.Status.Conditions) == 0 {
		e.wait(report.Wait{
			Step: "autoscaling controller", Since: report.When(h.CreationTimestamp.Time), Said: "it has not looked at the autoscaler yet", Next: "the controller runs",
		})
	}
	e.able()
	e.active(target)
	e.limited()
	e.conclude(fmt.Sprintf("It has the size that it wants: %s.", count(h.Status.DesiredReplicas, "replica")))
	e.metrics()
	if t := h.Status.LastScaleTime; t != nil {
		e.note("last scaled %s", strings.TrimPrefix(ago(report.When(t.Time), e.about.Now), ", for ")+" ago")
	}
	return e.out
}

func (e *scaling) condition(t autoscalingv2.HorizontalPodAutoscalerConditionType) *autoscalingv2.HorizontalPodAutoscalerCondition {
	for i := range e.Status.Conditions {
		if c := &e.Status.Conditions[i]; c.Type == t {
			return c
		}
	}
	return nil
}

// told waits for what a condition says.
func (e *scaling) told(c *autoscalingv2.HorizontalPodAutoscalerCondition, step, next string) {
	e.wait(report.Wait{Step: step, Since: report.When(c.LastTransitionTime.Time), Said: report.Said(c.Reason, c.Message), Next: next})
}

// able explains whether the target can be read and changed, and what holds changes back.
func (e *scaling) able() {
	c := e.condition(autoscalingv2.AbleToScale)
	switch {
	case c == nil:
	case c.Status == v1.ConditionFalse && c.Reason == "FailedGetScale":
		e.told(c, "its target", "what spec.scaleTargetRef names exists and can be scaled")
	case c.Status == v1.ConditionFalse:
		e.told(c, "scaling of its target", "what the message names is put right; the controller retries on its own")
	case c.Reason == "ScaleDownStabilized":
		e.told(c, "stabilization before it shrinks", "the highest size that was wanted within the window (300 s, or behavior.scaleDown.stabilizationWindowSeconds) is lower")
	case c.Reason == "ScaleUpStabilized":
		e.told(c, "stabilization before it grows", "the lowest size that was wanted within behavior.scaleUp.stabilizationWindowSeconds is higher")
	}
}

// active explains whether a size can be computed.
func (e *scaling) active(target string) {
	if z := e.condition(autoscalingv2.ScaledToZero); z != nil && z.Status == v1.ConditionTrue {
		e.note("the autoscaler itself has scaled its target to zero: it wakes it when an object or external metric tells of work")
	}
	c := e.condition(autoscalingv2.ScalingActive)
	switch {
	case c == nil || c.Status == v1.ConditionTrue:
	case c.Reason == "ScalingDisabled":
		e.told(c, "replicas of "+target, "somebody scales it to 1 or more: at 0, if it was not the autoscaler that set it, the autoscaler is off")
	case strings.HasPrefix(c.Reason, "FailedGet"):
		e.told(c, "a metric", "the metric is there: a metrics server (metrics.k8s.io, custom or external) answers, pods run, and they have resources.requests for what is measured")
	default:
		e.told(c, "a size", "what the message names is put right")
	}
}

// limited explains what bounds the size.
func (e *scaling) limited() {
	c := e.condition(autoscalingv2.ScalingLimited)
	if c == nil || c.Status != v1.ConditionTrue {
		return
	}
	switch c.Reason {
	case "TooManyReplicas":
		e.told(c, "its maximum", fmt.Sprintf("the load falls, or spec.maxReplicas (%d) is raised", e.Spec.MaxReplicas))
	case "TooFewReplicas": // nothing is missing
		e.note("it is at its minimum (%d): the load would do with less", orOne(e.Spec.MinReplicas))
	case "ScaleUpLimit":
		e.told(c, "the rate at which it may grow", "the next look; behavior.scaleUp bounds each step")
	case "ScaleDownLimit":
		e.told(c, "the rate at which it may shrink", "the next look; behavior.scaleDown bounds each step")
	default:
		e.told(c, "a bound of its size", "what the message names changes")
	}
}

// metrics notes what was measured of resources, and what is aimed at.
func (e *scaling) metrics() {
	for _, m := range e.Status.CurrentMetrics {
		if m.Resource == nil {
			continue
		}
		e.note("%s is %s%s", m.Resource.Name, valueOf(m.Resource.Current), e.aim(m.Resource.Name))
	}
}

func (e *scaling) aim(name v1.ResourceName) string {
	for _, m := range e.Spec.Metrics {
		switch {
		case m.Resource == nil || m.Resource.Name != name:
		case m.Resource.Target.AverageUtilization != nil:
			return fmt.Sprintf("; the target is %d %%", *m.Resource.Target.AverageUtilization)
		default:
			return "; the target is " + quantity(m.Resource.Target.AverageValue)
		}
	}
	return ""
}

func valueOf(v autoscalingv2.MetricValueStatus) string {
	if v.AverageUtilization != nil {
		return fmt.Sprintf("%d %% of what is requested (%s a pod)", *v.AverageUtilization, quantity(v.AverageValue))
	}
	return quantity(v.AverageValue) + " a pod"
}

func quantity(q *resource.Quantity) string {
	if q == nil {
		return "unknown"
	}
	return q.String()
}
