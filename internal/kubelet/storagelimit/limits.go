// Package storagelimit evicts pods that use more of the node's disk than their own limits allow: the size
// limit of an emptyDir, the ephemeral storage of a container, and that of the pod as a whole. Exceeds
// decides, without any I/O; an Enforcer measures the pods that have such limits, and no others. What an
// emptyDir in memory may hold, the kernel enforces.
package storagelimit

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Signals of evictions, as the metric has them.
const (
	SignalEmptyDir  = "emptydirfs.limit"
	SignalPod       = "ephemeralpodfs.limit"
	SignalContainer = "ephemeralcontainerfs.limit"
)

// Usage is what a pod uses of the disk, in bytes.
type Usage struct {
	// Pod is all of it.
	Pod uint64
	// Volumes by name; Containers by name, their layers and logs.
	Volumes, Containers map[string]uint64
}

// Limited reports whether a pod has limits that are enforced here.
func Limited(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if _, ok := sizeLimit(&pod.Spec.Volumes[i]); ok {
			return true
		}
	}
	_, ok := podLimit(pod)
	return ok
}

// sizeLimit returns the limit of a volume that is an emptyDir on disk.
func sizeLimit(v *v1.Volume) (resource.Quantity, bool) {
	e := v.EmptyDir
	if e == nil || e.Medium != v1.StorageMediumDefault || e.SizeLimit == nil || e.SizeLimit.Sign() <= 0 {
		return resource.Quantity{}, false
	}
	return *e.SizeLimit, true
}

func podLimit(pod *v1.Pod) (resource.Quantity, bool) {
	q, ok := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	return q, ok
}

// Exceeds returns the limit that a pod exceeds, if any, and the message for it.
func Exceeds(pod *v1.Pod, u Usage) (signal, message string, exceeds bool) {
	over := func(used uint64, limit resource.Quantity) bool {
		return resource.NewQuantity(int64(used), resource.BinarySI).Cmp(limit) > 0
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if limit, ok := sizeLimit(v); ok && over(u.Volumes[v.Name], limit) {
			return SignalEmptyDir, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String()), true
		}
	}
	if limit, ok := podLimit(pod); ok && over(u.Pod, limit) {
		return SignalPod, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String()), true
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if limit := c.Resources.Limits[v1.ResourceEphemeralStorage]; limit.Sign() > 0 && over(u.Containers[c.Name], limit) {
			return SignalContainer, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String()), true
		}
	}
	return "", "", false
}
