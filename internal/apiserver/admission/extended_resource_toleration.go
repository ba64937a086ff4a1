package admission

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/validation"
)

// extendedResourceToleration lets pods that ask for a device onto the nodes that have it, and that are
// tainted with its name so that other pods stay away.
type extendedResourceToleration struct{}

var _ admission.MutationInterface = extendedResourceToleration{}

func (extendedResourceToleration) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (extendedResourceToleration) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok {
		return nil
	}
	devices := map[corev1.ResourceName]bool{}
	for c := range pods.Containers(&pod.Spec) {
		for name := range c.Resources.Requests {
			if validation.IsExtendedResource(name) {
				devices[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		tolerate(pod, corev1.Toleration{Key: string(name), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return nil
}

// tolerate adds a toleration to a pod, or puts it in the place of one for the same taints.
func tolerate(pod *corev1.Pod, t corev1.Toleration) {
	for i := range pod.Spec.Tolerations {
		if pod.Spec.Tolerations[i].MatchToleration(&t) {
			pod.Spec.Tolerations[i] = t
			return
		}
	}
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
}
