package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// TaintToleration keeps pods off nodes whose taints they do not tolerate, and prefers nodes without
// PreferNoSchedule taints.
type TaintToleration struct{}

// Name returns upstream's name.
func (TaintToleration) Name() string { return "TaintToleration" }

// Filter looks for a NoSchedule or NoExecute taint that is not tolerated.
func (TaintToleration) Filter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	repels := func(t *v1.Taint) bool {
		return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
	}
	_, found := corev1.FindMatchingUntoleratedTaint(klog.FromContext(ctx), node(n).Spec.Taints, pod.Spec.Tolerations, repels, true)
	if !found {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) had untolerated taint(s)")
}

// EventsToRegister returns the events that remove a taint.
func (TaintToleration) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(
		fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeTaint},
		fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodToleration},
	), nil
}

// Score returns the number of PreferNoSchedule taints that are not tolerated.
func (TaintToleration) Score(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	var count int64
	for i := range node(n).Spec.Taints {
		t := &node(n).Spec.Taints[i]
		if t.Effect == v1.TaintEffectPreferNoSchedule &&
			!corev1.TolerationsTolerateTaint(klog.FromContext(ctx), pod.Spec.Tolerations, t, true) {
			count++
		}
	}
	return count, nil
}

// ScoreExtensions returns the plugin itself: scores must be normalized, because fewer taints are
// better.
func (t TaintToleration) ScoreExtensions() fwk.ScoreExtensions { return t }

// NormalizeScore gives the node with the fewest taints the highest score.
func (TaintToleration) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	framework.Normalize(scores, true)
	return nil
}
