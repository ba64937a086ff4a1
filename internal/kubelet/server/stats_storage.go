package server

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/storagelimit"
)

// StorageMeter measures what single pods use of the node's disk, for their own limits.
type StorageMeter struct {
	*Stats
	// LayersApart: containers' layers are on another disk, and do not count as a container's usage there.
	LayersApart bool
}

// Storage measures one pod at the time of the call. What its containers left that no longer run counts, too.
func (m StorageMeter) Storage(ctx context.Context, p *podworker.Snapshot) (storagelimit.Usage, error) {
	uid := string(p.Pod.UID)
	ps, err := m.measuredPod(ctx, uid)
	if err != nil {
		return storagelimit.Usage{}, err
	}
	containers, err := m.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: map[string]string{pods.LabelPodUID: uid}})
	if err != nil {
		return storagelimit.Usage{}, err
	}
	running := map[string]bool{}
	for _, c := range ps.GetLinux().GetContainers() {
		running[c.GetAttributes().GetId()] = true
	}
	var dead []*runtimeapi.Container
	for _, c := range containers {
		if !running[c.Id] {
			dead = append(dead, c)
		}
	}
	now, out := time.Now(), storagelimit.Usage{Volumes: map[string]uint64{}, Containers: map[string]uint64{}}
	one := eviction.Pod{Pod: p.Pod, Containers: map[string]eviction.Usage{}}
	volumes := m.addLive(&one, ps, p, now)
	m.addDead(ctx, &one, p, dead, now)
	for i := range volumes {
		if used := volumes[i].UsedBytes; used != nil {
			out.Volumes[volumes[i].Name] = *used
		}
	}
	out.Pod = one.Bytes
	for name, u := range one.Containers {
		out.Containers[name] = u.Bytes
		if m.LayersApart {
			out.Containers[name] -= min(one.LayersOf[name].Bytes, u.Bytes)
		}
	}
	return out, nil
}

// measuredPod returns what the runtime measures of one pod; nil if nothing of it runs.
func (s *Stats) measuredPod(ctx context.Context, uid string) (*runtimeapi.PodSandboxStats, error) {
	list, err := s.Runtime.ListPodSandboxStats(ctx, &runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{pods.LabelPodUID: uid}})
	if status.Code(err) == codes.Unimplemented {
		list, err = s.measured(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, ps := range list {
		if ps.GetAttributes().GetMetadata().GetUid() == uid {
			return ps, nil
		}
	}
	return nil, nil
}
