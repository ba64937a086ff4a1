package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// limitPodHardAntiAffinityTopology keeps pods from claiming more than a node for themselves: with a
// required anti-affinity for a zone, one pod could keep all others out of it.
type limitPodHardAntiAffinityTopology struct{}

var _ admission.ValidationInterface = limitPodHardAntiAffinityTopology{}

func (limitPodHardAntiAffinityTopology) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (limitPodHardAntiAffinityTopology) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create, admission.Update)
	if !ok || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return forbid(a, "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed",
				term.TopologyKey, corev1.LabelHostname)
		}
	}
	return nil
}
