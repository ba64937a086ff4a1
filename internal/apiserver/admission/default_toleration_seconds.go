package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// tolerateSeconds is how long a pod stays on a node that has become unreachable or not ready.
const tolerateSeconds = 300

// defaultTolerationSeconds lets pods stay for a while on a node that is not ready or not reachable,
// unless the pod has a toleration for that itself.
type defaultTolerationSeconds struct{}

var _ admission.MutationInterface = defaultTolerationSeconds{}

func (defaultTolerationSeconds) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (defaultTolerationSeconds) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok {
		return nil
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !speaksOf(pod.Spec.Tolerations, key) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: new(int64(tolerateSeconds)),
			})
		}
	}
	return nil
}

func speaksOf(tolerations []corev1.Toleration, key string) bool {
	for _, t := range tolerations {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
