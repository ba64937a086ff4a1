package devicetainteviction

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"

	"wherry.dev/internal/api/devices"
	"wherry.dev/internal/controller"
)

// tally is what a rule does, or would do.
type tally struct {
	pods, namespaces     int // pods that are to go, and the namespaces in which they are
	published, allocated int // devices that the rule selects
	evicted              int // pods that have gone since the start
}

// report writes a rule's status. It is written at most every ten seconds for each version of the rule.
func (c *Controller) report(ctx context.Context, name string) error {
	rule, err := c.rules.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var is metav1.Condition
	if i := slices.IndexFunc(rule.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == resourcev1.DeviceTaintConditionEvictionInProgress
	}); i >= 0 {
		is = rule.Status.Conditions[i]
		if since := time.Since(is.LastTransitionTime.Time); is.ObservedGeneration == rule.Generation && since < statusPeriod {
			c.reports.AddAfter(name, statusPeriod-since)
			return nil
		}
	}
	if rule.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNone && is.ObservedGeneration == rule.Generation && is.Type != "" {
		return nil // it is told once, for who wants to know before it takes effect
	}
	t, err := c.tally(rule)
	if err != nil {
		return err
	}
	want := condition(rule, t)
	want.LastTransitionTime = is.LastTransitionTime
	if want == is {
		return nil
	}
	want.LastTransitionTime = metav1.Now() // of its text, too: it says when that was
	status := resourceac.DeviceTaintRuleStatus().WithConditions(metav1ac.Condition().
		WithType(want.Type).WithStatus(want.Status).WithReason(want.Reason).WithMessage(want.Message).
		WithObservedGeneration(want.ObservedGeneration).WithLastTransitionTime(want.LastTransitionTime))
	_, err = c.client.ResourceV1().DeviceTaintRules().ApplyStatus(ctx, resourceac.DeviceTaintRule(name).WithUID(rule.UID).WithStatus(status),
		metav1.ApplyOptions{FieldManager: controllerName, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// tally counts what a rule does; of one without an effect, what it would do if it evicted.
func (c *Controller) tally(rule *resourcev1.DeviceTaintRule) (tally, error) {
	c.mu.Lock()
	t := tally{evicted: c.evicted[rule.UID]}
	c.mu.Unlock()
	switch rule.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
	case resourcev1.DeviceTaintEffectNone:
		rule = rule.DeepCopy()
		rule.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoExecute
	default:
		return t, nil
	}
	seen, namespaces := sets.New[types.UID](), sets.New[string]()
	for _, claim := range c.claimsOf(rule) {
		t.allocated += selected(rule, claim)
		for _, pod := range c.users(claim) {
			if seen.Has(pod.UID) {
				continue
			}
			if causes := c.causes(pod, []*resourcev1.DeviceTaintRule{rule}); rulesOf(causes)[rule] {
				seen.Insert(pod.UID)
				namespaces.Insert(pod.Namespace)
			}
		}
	}
	t.pods, t.namespaces = seen.Len(), namespaces.Len()
	for _, pool := range c.ofSlices.ListIndexFuncValues(byPool) {
		all, err := controller.LookUp[*resourcev1.ResourceSlice](c.ofSlices, byPool, pool)
		if err != nil {
			return t, err
		}
		for _, s := range devices.Current(all) {
			for i := range s.Spec.Devices {
				if devices.Tainted(rule, devices.Device{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Name: s.Spec.Devices[i].Name}) {
					t.published++
				}
			}
		}
	}
	return t, nil
}

// condition says what a rule does, in upstream's words.
func condition(rule *resourcev1.DeviceTaintRule, t tally) metav1.Condition {
	c := metav1.Condition{
		Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, ObservedGeneration: rule.Generation,
	}
	switch rule.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
		switch {
		case t.pods > 0:
			c.Status, c.Reason = metav1.ConditionTrue, "PodsPendingEviction"
			c.Message = fmt.Sprintf("%s to be evicted in %s.", count(t.pods, "pod needs", "pods need"), inNamespaces(t.namespaces))
		case t.evicted > 0:
			c.Reason = "Completed"
		default:
			c.Reason = "NotStarted"
		}
	case resourcev1.DeviceTaintEffectNone:
		c.Reason = "NoEffect"
		c.Message = fmt.Sprintf("%s selected. %s selected. %s would be evicted in %s if the effect was NoExecute. "+
			"This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
			count(t.published, "published device", "published devices"), count(t.allocated, "allocated device", "allocated devices"),
			count(t.pods, "pod", "pods"), inNamespaces(t.namespaces))
	default:
		c.Reason, c.Message = "OtherEffect", "Eviction only happens for the NoExecute effect."
	}
	if t.evicted > 0 {
		if c.Message != "" {
			c.Message += " "
		}
		c.Message += count(t.evicted, "pod", "pods") + " evicted since starting the controller."
	}
	return c
}

func inNamespaces(n int) string { return count(n, "namespace", "different namespaces") }

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
