package pods

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

// EffectiveResources returns a container's resources, with the limits of the pod as a whole where
// the container has none of its own (KEP-2837).
func EffectiveResources(r v1.ResourceRequirements, podLimits v1.ResourceList) v1.ResourceRequirements {
	if len(podLimits) == 0 {
		return r
	}
	limits := v1.ResourceList{}
	maps.Copy(limits, r.Limits)
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if own := limits[name]; !own.IsZero() {
			continue
		}
		if q, ok := podLimits[name]; ok {
			limits[name] = q
		}
	}
	r.Limits = limits
	return r
}
