package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// TolerationSeconds is how long a pod stays on a node that has become not ready or unreachable.
type TolerationSeconds struct{ NotReady, Unreachable int64 }

// defaultTolerationSeconds lets pods stay for a while on a node that is not ready or not reachable,
// unless the pod has a toleration for that itself.
type defaultTolerationSeconds struct{ stay TolerationSeconds }

var _ admission.MutationInterface = defaultTolerationSeconds{}

func (defaultTolerationSeconds) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (d defaultTolerationSeconds) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok {
		return nil
	}
	for _, taint := range []struct {
		key  string
		stay int64
	}{{corev1.TaintNodeNotReady, d.stay.NotReady}, {corev1.TaintNodeUnreachable, d.stay.Unreachable}} {
		if !speaksOf(pod.Spec.Tolerations, taint.key) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: taint.key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: &taint.stay,
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
