package criconfig

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/pods"
)

const (
	minShares    = 2
	maxShares    = 262144
	minQuota     = 1000 // µs, what the kernel allows
	cpuUnlimited = -1
)

// CFS is how CPU limits are enforced.
type CFS struct {
	// Off: CPU limits are not enforced.
	Off bool
	// Period of the quota; 0 means the kernel's 100 ms.
	Period time.Duration
}

func (c CFS) period() int64 {
	if c.Period == 0 {
		return 100000
	}
	return c.Period.Microseconds()
}

// Shares converts CPU requests in millicores to cpu.shares.
func Shares(milli int64) int64 {
	if milli == 0 {
		return minShares
	}
	return min(max(milli*1024/1000, minShares), maxShares)
}

// quota converts a CPU limit in millicores to microseconds per period.
func (c CFS) quota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*c.period()/1000, minQuota)
}

// ContainerResources returns a container's limits. Where it has none of its own, the pod-level
// limits apply to it (KEP-2837).
func ContainerResources(pod *v1.Pod, c *v1.Container, cfs CFS) *runtimeapi.LinuxContainerResources {
	return resourcesOf(pods.EffectiveResources(c.Resources, podLevelLimits(pod)), cfs)
}

// resourcesOf converts what a container requests. Without a request, the limit is used.
func resourcesOf(r v1.ResourceRequirements, cfs CFS) *runtimeapi.LinuxContainerResources {
	cpu := r.Requests.Cpu()
	if _, ok := r.Requests[v1.ResourceCPU]; !ok {
		cpu = r.Limits.Cpu()
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares: Shares(cpu.MilliValue()), MemoryLimitInBytes: r.Limits.Memory().Value(),
	}
	if !cfs.Off {
		out.CpuPeriod, out.CpuQuota = cfs.period(), cmp.Or(cfs.quota(r.Limits.Cpu().MilliValue()), cpuUnlimited)
	}
	return out
}

// SandboxResources returns what a runtime is told about a pod as a whole: its RuntimeClass's
// overhead, and what its containers have.
func SandboxResources(pod *v1.Pod, cfs CFS) (overhead, resources *runtimeapi.LinuxContainerResources) {
	opts := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	return resourcesOf(v1.ResourceRequirements{Limits: pod.Spec.Overhead, Requests: pod.Spec.Overhead}, cfs),
		resourcesOf(v1.ResourceRequirements{Requests: resourcehelper.PodRequests(pod, opts), Limits: podLimits(pod, opts)}, cfs)
}

// podLimits returns the pod's limits for the resources that every container limits: a single
// container without a limit leaves the pod without one.
func podLimits(pod *v1.Pod, opts resourcehelper.PodResourcesOptions) v1.ResourceList {
	limits := resourcehelper.PodLimits(pod, opts)
	podLevel := v1.ResourceList{}
	if pod.Spec.Resources != nil {
		podLevel = pod.Spec.Resources.Limits
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if _, ok := podLevel[name]; !ok && !allLimit(pod, name) {
			delete(limits, name)
		}
	}
	return limits
}

func allLimit(pod *v1.Pod, name v1.ResourceName) bool {
	for c := range pods.Containers(&pod.Spec) {
		if q := c.Resources.Limits[name]; q.IsZero() {
			return false
		}
	}
	return true
}

// OOMScoreAdj returns how early the kernel kills a container when memory runs out, from the pod's
// QoS class and the container's share of the node's memory.
func OOMScoreAdj(pod *v1.Pod, c *v1.Container, nodeMemory int64) int64 {
	const guaranteed, bestEffort = -997, 1000
	if pods.IsNodeCritical(pod) {
		return guaranteed
	}
	switch qos.GetPodQOS(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteed
	case v1.PodQOSBestEffort:
		return bestEffort
	}
	if nodeMemory <= 0 {
		return bestEffort - 1
	}
	score := func(memory int64) int64 { return 1000 - 1000*memory/nodeMemory }
	spare := spareMemory(pod)
	adj := score(c.Resources.Requests.Memory().Value() + spare)
	if pods.IsSidecar(c) { // it must not be killed before those that it serves
		least := int64(math.MaxInt64)
		for i := range pod.Spec.Containers {
			least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		adj = min(adj, score(least+spare))
	}
	return min(max(adj, 1000+guaranteed), bestEffort-1)
}

// spareMemory returns each container's share of what the pod as a whole requests beyond its
// containers.
func spareMemory(pod *v1.Pod) int64 {
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	own := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	n := int64(len(pod.Spec.Containers) + len(pod.Spec.InitContainers))
	return (pod.Spec.Resources.Requests.Memory().Value() - own.Memory().Value()) / max(n, 1)
}

// PodCgroupResources returns the limits of the pod's cgroup.
func PodCgroupResources(pod *v1.Pod, pidsLimit int64, cfs CFS) *specs.LinuxResources {
	opts := resourcehelper.PodResourcesOptions{}
	requests, limits := resourcehelper.PodRequests(pod, opts), podLimits(pod, opts)
	shares := uint64(Shares(requests.Cpu().MilliValue()))
	if qos.GetPodQOS(pod) == v1.PodQOSBestEffort {
		shares = minShares
	}
	res := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}}
	if quota := cfs.quota(limits.Cpu().MilliValue()); quota > 0 && !cfs.Off {
		p := uint64(cfs.period())
		res.CPU.Quota, res.CPU.Period = &quota, &p
	}
	if m := limits.Memory().Value(); m > 0 {
		res.Memory = &specs.LinuxMemory{Limit: &m}
	}
	if pidsLimit > 0 {
		res.Pids = &specs.LinuxPids{Limit: &pidsLimit}
	}
	return res
}

// ResourceField resolves a resourceFieldRef for a container of a pod. For CPU, memory and ephemeral
// storage without a limit it uses the limit of the pod as a whole or, without one, the node's
// allocatable.
func ResourceField(ref *v1.ResourceFieldSelector, pod *v1.Pod, c *v1.Container, allocatable v1.ResourceList) (string, error) {
	kind, resource, ok := strings.Cut(ref.Resource, ".")
	name := v1.ResourceName(resource)
	plain := slices.Contains([]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}, name)
	if !ok || kind != "limits" && kind != "requests" || !plain && !strings.HasPrefix(resource, v1.ResourceHugePagesPrefix) {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	q := c.Resources.Requests[name]
	if kind == "limits" {
		q = c.Resources.Limits[name]
		for _, l := range []v1.ResourceList{podLevelLimits(pod), allocatable} {
			if plain && q.IsZero() {
				q = l[name]
			}
		}
	}
	value, d := q.Value(), ref.Divisor.Value()
	if name == v1.ResourceCPU {
		value, d = q.MilliValue(), cmp.Or(ref.Divisor.MilliValue(), 1000)
	}
	d = max(d, 1)
	return fmt.Sprint((value + d - 1) / d), nil
}

// MemoryLimit returns the pod's memory limit in bytes, 0 if it has none.
func MemoryLimit(pod *v1.Pod) int64 {
	limits := podLimits(pod, resourcehelper.PodResourcesOptions{})
	return limits.Memory().Value()
}
