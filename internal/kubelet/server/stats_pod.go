package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/kubelet/podplan"
)

// measured returns what the runtime measures: pods with their containers. cri-dockerd measures
// containers only; complete and podNetwork add the rest.
func (s *Stats) measured(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error) {
	list, err := s.Runtime.ListPodSandboxStats(ctx, nil)
	if status.Code(err) != codes.Unimplemented {
		return list, err
	}
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	containers, err := s.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{State: running})
	if err != nil {
		return nil, err
	}
	owner := map[string]string{}
	for _, c := range containers {
		owner[c.Id] = c.Labels[pods.LabelPodUID]
	}
	all, err := s.Runtime.ListContainerStats(ctx, nil)
	if err != nil {
		return nil, err
	}
	byPod := map[string][]*runtimeapi.ContainerStats{}
	for _, c := range all {
		if uid := owner[c.GetAttributes().GetId()]; uid != "" {
			byPod[uid] = append(byPod[uid], c)
		}
	}
	for _, p := range s.Pods.List() {
		uid := string(p.Pod.UID)
		if !slices.ContainsFunc(p.Input.Sandboxes, func(sb podplan.Sandbox) bool { return sb.Ready }) && byPod[uid] == nil {
			continue
		}
		list = append(list, &runtimeapi.PodSandboxStats{
			Attributes: &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{
				Name: p.Pod.Name, Namespace: p.Pod.Namespace, Uid: uid,
			}},
			Linux: &runtimeapi.LinuxPodSandboxStats{Containers: byPod[uid]},
		})
	}
	return list, nil
}

// complete adds what the runtime did not measure from the pod's cgroup. CRI-O 1.37 measures no pods
// on cgroup v1.
func (s *Stats) complete(out *stats.PodStats, pod *v1.Pod) {
	if out.CPU != nil && out.Memory != nil || s.PodCgroup == nil {
		return
	}
	cpu, mem, err := s.group(string(pod.UID), s.PodCgroup(pod))
	if err == nil {
		out.CPU, out.Memory = cmp.Or(out.CPU, cpu), cmp.Or(out.Memory, mem)
	}
}

// podNetwork reads the counters of a pod's network namespace, which its oldest process is in.
func (s *Stats) podNetwork(pod *v1.Pod, now time.Time) *stats.NetworkStats {
	if pod.Spec.HostNetwork || s.PodCgroup == nil {
		return nil
	}
	pids, err := cgroup.Procs(s.PodCgroup(pod))
	if err != nil {
		return nil
	}
	slices.Sort(pids)
	for _, pid := range pids {
		if n := networkOf(fmt.Sprintf("/proc/%d/net", pid), metav1.NewTime(now)); n != nil {
			return n
		}
	}
	return nil
}
