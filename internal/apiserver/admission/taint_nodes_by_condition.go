package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// taintNodesByCondition keeps pods from a new node until the node controller, which takes the taint
// away, has seen that it is ready.
type taintNodesByCondition struct{}

var _ admission.MutationInterface = taintNodesByCondition{}

func (taintNodesByCondition) Handles(op admission.Operation) bool { return op == admission.Create }

func (taintNodesByCondition) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != nodesResource || a.GetSubresource() != "" {
		return nil
	}
	node, ok := a.GetObject().(*corev1.Node)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}
