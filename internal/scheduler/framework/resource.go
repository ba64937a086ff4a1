package framework

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1helper "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
)

// The requests that are assumed for containers without any when nodes are scored, so that pods that
// request nothing are still spread.
const (
	defaultMilliCPURequest = 100               // 0.1 core
	defaultMemoryRequest   = 200 * 1024 * 1024 // 200 MiB
)

// Resource is an amount of everything that a node has. CPU is in thousandths of a core, memory and
// storage in bytes.
type Resource struct {
	MilliCPU         int64
	Memory           int64
	EphemeralStorage int64
	AllowedPodNumber int
	ScalarResources  map[v1.ResourceName]int64
}

var _ fwk.Resource = (*Resource)(nil)

// NewResource converts a resource list.
func NewResource(rl v1.ResourceList) *Resource {
	r := &Resource{}
	for name, q := range rl {
		switch name {
		case v1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case v1.ResourceMemory:
			r.Memory = q.Value()
		case v1.ResourcePods:
			r.AllowedPodNumber = int(q.Value())
		case v1.ResourceEphemeralStorage:
			r.EphemeralStorage = q.Value()
		default:
			if r.ScalarResources == nil {
				r.ScalarResources = map[v1.ResourceName]int64{}
			}
			r.ScalarResources[name] = q.Value()
		}
	}
	return r
}

// GetMilliCPU returns CPU in thousandths of a core.
func (r *Resource) GetMilliCPU() int64 { return r.MilliCPU }

// GetMemory returns bytes of memory.
func (r *Resource) GetMemory() int64 { return r.Memory }

// GetEphemeralStorage returns bytes of local storage.
func (r *Resource) GetEphemeralStorage() int64 { return r.EphemeralStorage }

// GetAllowedPodNumber returns how many pods a node accepts.
func (r *Resource) GetAllowedPodNumber() int { return r.AllowedPodNumber }

// GetScalarResources returns all other resources by name: extended resources, huge pages.
func (r *Resource) GetScalarResources() map[v1.ResourceName]int64 { return r.ScalarResources }

// SetMaxResource raises each amount to the one in the list if that is larger.
func (r *Resource) SetMaxResource(rl v1.ResourceList) {
	o := NewResource(rl)
	r.MilliCPU = max(r.MilliCPU, o.MilliCPU)
	r.Memory = max(r.Memory, o.Memory)
	r.EphemeralStorage = max(r.EphemeralStorage, o.EphemeralStorage)
	r.AllowedPodNumber = max(r.AllowedPodNumber, o.AllowedPodNumber)
	for name, v := range o.ScalarResources {
		if r.ScalarResources == nil {
			r.ScalarResources = map[v1.ResourceName]int64{}
		}
		r.ScalarResources[name] = max(r.ScalarResources[name], v)
	}
}

// add adds sign (1 or -1) times o, except for the number of pods.
func (r *Resource) add(o *Resource, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
	for name, v := range o.ScalarResources {
		if r.ScalarResources == nil {
			r.ScalarResources = map[v1.ResourceName]int64{}
		}
		r.ScalarResources[name] += sign * v
	}
}

func (r *Resource) clone() Resource {
	c := *r
	c.ScalarResources = maps.Clone(r.ScalarResources)
	return c
}

// Requests returns what a pod counts for on its node: during a resize, the larger of what it
// requests and what it has.
func Requests(pod *v1.Pod) v1.ResourceList {
	return v1helper.PodRequests(pod, v1helper.PodResourcesOptions{UseStatusResources: true})
}

// podResource returns the sum of a pod's requests: the larger of its containers together and of
// each init container, plus sidecars and overhead (KEP-753). Extended resources of a pod on a node that are devices of
// a claim (KEP-5004) are nothing that the node has given to it; upstream counts them nevertheless.
func podResource(pod *v1.Pod) fwk.PodResource {
	all := podResourceOf(pod)
	if pod.Spec.NodeName != "" {
		pods.DropDevices(pod, all.Resource.GetScalarResources())
	}
	return all
}

func podResourceOf(pod *v1.Pod) fwk.PodResource {
	if r, ok := plainResource(pod); ok {
		return r
	}
	opts := v1helper.PodResourcesOptions{UseStatusResources: true}
	reqs := Requests(pod)
	opts.NonMissingContainerRequests = v1.ResourceList{
		v1.ResourceCPU:    *newMilli(defaultMilliCPURequest),
		v1.ResourceMemory: *newBytes(defaultMemoryRequest),
	}
	if v1helper.IsPodLevelRequestsSet(pod) { // KEP-2837: then only for what neither the pod nor a container requests
		maps.DeleteFunc(opts.NonMissingContainerRequests, func(name v1.ResourceName, _ resource.Quantity) bool {
			_, requested := reqs[name]
			return requested
		})
	}
	nonZero := v1helper.PodRequests(pod, opts)
	return fwk.PodResource{
		Resource: NewResource(reqs),
		Non0CPU:  nonZero.Cpu().MilliValue(),
		Non0Mem:  nonZero.Memory().Value(),
	}
}

// plainResource is podResource for the pods that most are: containers with nothing but requests. It allocates
// a hundredth. It reports false for all others.
func plainResource(pod *v1.Pod) (fwk.PodResource, bool) {
	if len(pod.Spec.InitContainers) > 0 || pod.Spec.Resources != nil || pod.Spec.Overhead != nil || pod.Status.Resources != nil || pod.Status.AllocatedResources != nil {
		return fwk.PodResource{}, false
	}
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.Resources != nil || c.AllocatedResources != nil {
			return fwk.PodResource{}, false
		}
	}
	sum := &Resource{}
	all := fwk.PodResource{Resource: sum}
	for i := range pod.Spec.Containers {
		requests := pod.Spec.Containers[i].Resources.Requests
		one := NewResource(requests)
		for name, q := range requests {
			if _, whole := q.AsInt64(); !whole && name != v1.ResourceCPU {
				return fwk.PodResource{}, false // parts of a byte add up first, and are rounded then
			}
		}
		sum.add(one, 1)
		if _, ok := requests[v1.ResourceCPU]; !ok {
			one.MilliCPU = defaultMilliCPURequest
		}
		if _, ok := requests[v1.ResourceMemory]; !ok {
			one.Memory = defaultMemoryRequest
		}
		all.Non0CPU += one.MilliCPU
		all.Non0Mem += one.Memory
	}
	return all, true
}
