package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// qosResources are the resources that a pod's class is computed from.
var qosResources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// QOSClass computes a pod's quality-of-service class: Guaranteed when all containers
// (or the pod as a whole, KEP-2837) limit CPU and memory and request as much,
// BestEffort when nothing is asked for, Burstable otherwise.
func QOSClass(spec *corev1.PodSpec) corev1.PodQOSClass {
	var sets []corev1.ResourceRequirements
	if r := spec.Resources; r != nil && (len(r.Requests) > 0 || len(r.Limits) > 0) {
		sets = append(sets, *r)
	} else {
		for _, cs := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
			for i := range cs {
				sets = append(sets, cs[i].Resources)
			}
		}
	}
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	for _, r := range sets {
		addPositive(requests, r.Requests)
		if addPositive(limits, r.Limits) != len(qosResources) {
			guaranteed = false
		}
	}
	if len(requests) == 0 && len(limits) == 0 {
		return corev1.PodQOSBestEffort
	}
	for name, request := range requests {
		if limit, ok := limits[name]; !ok || limit.Cmp(request) != 0 {
			guaranteed = false
		}
	}
	if guaranteed && len(requests) == len(limits) {
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// addPositive adds what from asks of CPU and memory to sum, and returns how many of
// the two it asks for.
func addPositive(sum, from corev1.ResourceList) int {
	found := 0
	for _, name := range qosResources {
		q, ok := from[name]
		if !ok || q.Sign() <= 0 {
			continue
		}
		found++
		total, ok := sum[name]
		if !ok {
			total = resource.Quantity{}
		}
		total.Add(q)
		sum[name] = total
	}
	return found
}
