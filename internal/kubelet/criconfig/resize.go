package criconfig

import (
	"cmp"
	"maps"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
)

// ResizeStep changes the limits of one cgroup: the pod's or, if it has a name, a container's.
type ResizeStep struct {
	Container string
	Limits    *runtimeapi.LinuxContainerResources // of a container
	Pod       *specs.LinuxResources               // of the pod
	// Memory limit, for the pod too, if it is lower than before; otherwise 0.
	Memory int64
}

// ResizeSteps returns the steps from a pod's old resources to its new ones, in an order in which no
// container's limit ever exceeds its pod's: the pod's group grows before its containers and shrinks
// after them, and containers that shrink make room for those that grow. Memory comes first, and what the kernel is told
// of it besides comes last. Only the named containers are changed. allocatable is the node's memory for pods, in bytes.
func ResizeSteps(old, next *v1.Pod, containers []string, cfs CFS, memory *MemoryQoS, allocatable int64) []ResizeStep {
	was, want := PodCgroupResources(old, 0, cfs), PodCgroupResources(next, 0, cfs)
	var out []ResizeStep
	pod := func(r *specs.LinuxResources, memory int64) { out = append(out, ResizeStep{Pod: r, Memory: memory}) }

	from, to := memoryOf(was), memoryOf(want)
	limit := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &to}}
	if to != 0 && from != 0 && to > from {
		pod(limit, 0)
	}
	out = append(out, containerSteps(old, next, containers, cfs, memoryStep)...)
	if to != 0 && (from == 0 || to < from) {
		pod(limit, to)
	}

	quota := &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: want.CPU.Quota, Period: want.CPU.Period}}
	shares := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: want.CPU.Shares}}
	grows := want.CPU.Quota != nil && was.CPU.Quota != nil && *want.CPU.Quota > *was.CPU.Quota
	shrinks := want.CPU.Quota != nil && (was.CPU.Quota == nil || *want.CPU.Quota < *was.CPU.Quota)
	if grows {
		pod(quota, 0)
	}
	if *want.CPU.Shares > *was.CPU.Shares {
		pod(shares, 0)
	}
	out = append(out, containerSteps(old, next, containers, cfs, cpuStep)...)
	if *want.CPU.Shares < *was.CPU.Shares {
		pod(shares, 0)
	}
	if shrinks {
		pod(quota, 0)
	}
	for _, name := range containers {
		a, b := pods.FindContainer(old, name), pods.FindContainer(next, name)
		if a == nil || b == nil {
			continue
		}
		if s := changed(memory.container(old, a, allocatable), memory.container(next, b, allocatable)); len(s) > 0 {
			out = append(out, ResizeStep{Container: name, Limits: &runtimeapi.LinuxContainerResources{Unified: s}})
		}
	}
	if s := changed(memory.Pod(old), memory.Pod(next)); len(s) > 0 {
		pod(&specs.LinuxResources{Unified: s}, 0)
	}
	return out
}

// changed returns the settings that differ; those that are gone get the kernel's default.
func changed(old, next map[string]string) map[string]string {
	out := map[string]string{}
	for file := range old {
		if out[file] = "0"; file == MemoryHigh {
			out[file] = "max"
		}
	}
	maps.Copy(out, next)
	maps.DeleteFunc(out, func(file, value string) bool { return old[file] == value })
	return out
}

func memoryOf(r *specs.LinuxResources) int64 {
	if r.Memory == nil || r.Memory.Limit == nil {
		return 0
	}
	return *r.Memory.Limit
}

// containerSteps changes containers, those that shrink first. step returns by how much one grows,
// and nil if it does not change.
func containerSteps(old, next *v1.Pod, names []string, cfs CFS, step func(was, want *runtimeapi.LinuxContainerResources) (*ResizeStep, int64)) []ResizeStep {
	type change struct {
		ResizeStep
		by int64
	}
	var changes []change
	for _, name := range names {
		a, b := pods.FindContainer(old, name), pods.FindContainer(next, name)
		if a == nil || b == nil {
			continue
		}
		if s, by := step(ContainerResources(old, a, cfs), ContainerResources(next, b, cfs)); s != nil {
			s.Container = name
			changes = append(changes, change{*s, by})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.by, b.by) })
	out := make([]ResizeStep, 0, len(changes))
	for _, c := range changes {
		out = append(out, c.ResizeStep)
	}
	return out
}

func memoryStep(was, want *runtimeapi.LinuxContainerResources) (*ResizeStep, int64) {
	from, to := was.MemoryLimitInBytes, want.MemoryLimitInBytes
	if from == to {
		return nil, 0
	}
	s := &ResizeStep{Limits: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: to}}
	if from == 0 || to != 0 && to < from {
		s.Memory = to
		return s, -1
	}
	return s, to - from
}

func cpuStep(was, want *runtimeapi.LinuxContainerResources) (*ResizeStep, int64) {
	if was.CpuQuota == want.CpuQuota && was.CpuShares == want.CpuShares {
		return nil, 0
	}
	by := want.CpuQuota - was.CpuQuota
	if was.CpuQuota < 0 {
		by = -1
	}
	return &ResizeStep{Limits: &runtimeapi.LinuxContainerResources{
		CpuShares: want.CpuShares, CpuQuota: want.CpuQuota, CpuPeriod: want.CpuPeriod,
	}}, by
}
