package podplan

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// QOS returns the pod's quality-of-service class: Guaranteed when every container
// has equal, non-zero limits and requests for CPU and memory, BestEffort when none
// asks for any, Burstable otherwise. Pod-level resources decide where they are set.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	if r := pod.Spec.Resources; r != nil && (len(r.Requests) > 0 || len(r.Limits) > 0) {
		return qosOf([]v1.ResourceRequirements{*r})
	}
	var all []v1.ResourceRequirements
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			all = append(all, list[i].Resources)
		}
	}
	return qosOf(all)
}

func qosOf(all []v1.ResourceRequirements) v1.PodQOSClass {
	guaranteed, any := true, false
	for _, r := range all {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit, request := quantity(r.Limits, name), quantity(r.Requests, name)
			if request.IsZero() && !hasKey(r.Requests, name) {
				request = limit
			}
			any = any || !limit.IsZero() || !request.IsZero()
			guaranteed = guaranteed && !limit.IsZero() && limit.Cmp(request) == 0
		}
	}
	switch {
	case !any:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	default:
		return v1.PodQOSBurstable
	}
}

func quantity(l v1.ResourceList, name v1.ResourceName) resource.Quantity { return l[name] }

func hasKey(l v1.ResourceList, name v1.ResourceName) bool {
	_, ok := l[name]
	return ok
}
