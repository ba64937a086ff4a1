package server

import (
	"context"
	"errors"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/podplan"
)

// Compute measures which memory and processes the pods have that have not ended: by their control groups,
// which takes a moment even for many, or by the runtime if it has those.
func (s *Stats) Compute(ctx context.Context) ([]eviction.Pod, error) {
	byRuntime := map[string]*runtimeapi.PodSandboxStats{}
	if s.PodCgroup == nil {
		list, err := s.measured(ctx)
		if err != nil {
			return nil, err
		}
		for _, ps := range list {
			byRuntime[ps.GetAttributes().GetMetadata().GetUid()] = ps
		}
	}
	var out []eviction.Pod
	for _, p := range s.Pods.List() {
		if p.Plan.Life == podplan.PodTerminated {
			continue
		}
		one := eviction.Pod{Pod: p.Pod}
		if s.PodCgroup != nil {
			st, err := cgroup.ReadStats(s.PodCgroup(p.Pod))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			one.Memory, one.PIDs = st.MemoryWorkingSet, st.Pids
		} else {
			linux := byRuntime[string(p.Pod.UID)].GetLinux()
			one.Memory = linux.GetMemory().GetWorkingSetBytes().GetValue()
			one.PIDs = linux.GetProcess().GetProcessCount().GetValue()
		}
		out = append(out, one)
	}
	return out, nil
}

// ContainerMemory measures the containers of one pod, by name.
func (s *Stats) ContainerMemory(ctx context.Context, pod *v1.Pod) (map[string]eviction.Usage, error) {
	list, err := s.Runtime.ListContainerStats(ctx, &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{pods.LabelPodUID: string(pod.UID)}})
	if err != nil {
		return nil, err
	}
	out := map[string]eviction.Usage{}
	for _, c := range list {
		name := c.GetAttributes().GetLabels()[pods.LabelContainerName]
		if name == "" {
			name = c.GetAttributes().GetMetadata().GetName()
		}
		out[name] = eviction.Usage{Memory: c.GetMemory().GetWorkingSetBytes().GetValue()}
	}
	return out, nil
}
