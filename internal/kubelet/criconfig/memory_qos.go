package criconfig

import (
	"os"
	"strconv"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
)

// Control files of cgroup v2, beside memory.max.
const (
	MemoryHigh = "memory.high" // above it the kernel slows the processes down, and takes memory back
	MemoryLow  = "memory.low"  // below it the kernel takes memory back only if there is none elsewhere
	MemoryMin  = "memory.min"  // below it the kernel takes none back
)

// MemoryQoS is what the kernel is told of a pod's memory besides its limit (KEP-2570); it needs cgroup v2.
type MemoryQoS struct {
	// Throttling says where between its request and its limit (or what is allocatable, without one) a container is
	// slowed down: 0.9 is near the limit. 0 never does.
	Throttling float64
	// Tiered reserves what pods request: that of guaranteed ones absolutely, that of burstable ones as long as there is
	// memory elsewhere.
	Tiered bool
}

// container returns settings of a container's cgroup. allocatable is the node's memory for pods, in bytes.
func (q *MemoryQoS) container(pod *v1.Pod, c *v1.Container, allocatable int64) map[string]string {
	if q == nil {
		return nil
	}
	r := pods.EffectiveResources(c.Resources, podLevelLimits(pod))
	request, limit := r.Requests.Memory().Value(), r.Limits.Memory().Value()
	out := q.reserved(pod, request)
	most := limit
	if limit == 0 {
		most = allocatable
	}
	page := int64(os.Getpagesize())
	if high := int64(float64(request)+float64(most-request)*q.Throttling) / page * page; q.Throttling > 0 && high > request {
		out = with(out, MemoryHigh, high)
	}
	return out
}

// Pod returns settings of a pod's cgroup.
func (q *MemoryQoS) Pod(pod *v1.Pod) map[string]string {
	if q == nil {
		return nil
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return q.reserved(pod, requests.Memory().Value())
}

// reserved returns the setting that reserves what a pod, or a container of it, requests.
func (q *MemoryQoS) reserved(pod *v1.Pod, request int64) map[string]string {
	if !q.Tiered || request <= 0 {
		return nil
	}
	if qos.GetPodQOS(pod) == v1.PodQOSGuaranteed {
		return with(nil, MemoryMin, request)
	}
	return with(nil, MemoryLow, request)
}

func with(settings map[string]string, file string, bytes int64) map[string]string {
	if settings == nil {
		settings = map[string]string{}
	}
	settings[file] = strconv.FormatInt(bytes, 10)
	return settings
}
