package server

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/volume"
)

// Disk measures, at the time of the call, what pods hold of the node's disk and would free:
// writable layers, logs, termination messages and volumes without a file system of their own. For
// pods that have ended, it is what is left of their containers. VolumeAge must be zero.
func (s *Stats) Disk(ctx context.Context) ([]eviction.Pod, error) {
	list, err := s.measured(ctx)
	if err != nil {
		return nil, err
	}
	running, measured := map[string]*runtimeapi.PodSandboxStats{}, map[string]bool{}
	for _, ps := range list {
		running[ps.GetAttributes().GetMetadata().GetUid()] = ps
		for _, c := range ps.GetLinux().GetContainers() {
			measured[c.GetAttributes().GetId()] = true
		}
	}
	// The runtime measures what runs, and knows better than the pods' workers what does: a
	// container that has just ended may hold most.
	containers, err := s.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	rest := map[string][]*runtimeapi.Container{}
	for _, c := range containers {
		if uid := c.Labels[pods.LabelPodUID]; !measured[c.Id] {
			rest[uid] = append(rest[uid], c)
		}
	}
	now := time.Now()
	var out []eviction.Pod
	for _, p := range s.Pods.List() {
		one := eviction.Pod{Pod: p.Pod, Containers: map[string]eviction.Usage{}, Ended: p.Plan.Life == podplan.PodTerminated}
		if !one.Ended {
			s.addLive(&one, running[string(p.Pod.UID)], p, now)
			one.Claims = s.claims(p.Pod.UID, now)
		}
		s.addDead(ctx, &one, p, rest[string(p.Pod.UID)], now)
		out = append(out, one)
	}
	return out, nil
}

// addLive adds what a pod that has not ended holds, without its dead containers, and returns its volumes.
func (s *Stats) addLive(one *eviction.Pod, ps *runtimeapi.PodSandboxStats, p *podworker.Snapshot, now time.Time) []stats.VolumeStats {
	if ps == nil { // its sandbox is yet to come, or gone; its volumes exist
		ps = &runtimeapi.PodSandboxStats{Attributes: &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{
			Name: p.Pod.Name, Namespace: p.Pod.Namespace, Uid: string(p.Pod.UID),
		}}}
	}
	st := s.pod(ps, p, now, false)
	if e := st.EphemeralStorage; e != nil {
		one.Usage = usage(e)
	}
	for i := range st.Containers {
		layer, name := usage(st.Containers[i].Rootfs), st.Containers[i].Name
		one.AddLayer(name, layer)
		one.Containers[name] = layer.Plus(usage(st.Containers[i].Logs))
	}
	return st.VolumeStats
}

// claims returns what a pod's claims hold of the node's disk, by name.
func (s *Stats) claims(uid types.UID, now time.Time) map[string]eviction.Claimed {
	places, err := volume.Places(criconfig.Dirs{Root: s.RootDir}, uid)
	if err != nil {
		return nil
	}
	out := map[string]eviction.Claimed{}
	for _, p := range places {
		if p.Size == 0 {
			continue
		}
		if same, err := disk.Same(p.Path, s.RootDir); err == nil && same {
			out[p.Claim] = eviction.Claimed{Usage: usage(s.usage(p.Path, now)), Size: uint64(p.Size)}
		}
	}
	return out
}

// addDead adds what containers that no longer run have left: a container that fills the disk and
// crashes, again and again, leaves as much as one that runs.
func (s *Stats) addDead(ctx context.Context, one *eviction.Pod, p *podworker.Snapshot, dead []*runtimeapi.Container, now time.Time) {
	for _, c := range dead {
		name := c.GetMetadata().GetName()
		left := s.layer(ctx, c.Id)
		one.AddLayer(name, left)
		if _, logged := one.Containers[name]; !logged { // a running instance has the same log directory
			left = left.Plus(usage(s.logs(p.Pod, name, now)))
		}
		if one.Ended { // otherwise the pod's whole directory is counted
			left = left.Plus(usage(s.usage(criconfig.Dirs{Root: s.RootDir}.MessageFile(p.Pod.UID, name, attempt(p, c)), now)))
		}
		one.Containers[name] = one.Containers[name].Plus(left)
		one.Usage = one.Plus(left)
	}
}

// attempt returns the attempt number of a container.
func attempt(p *podworker.Snapshot, c *runtimeapi.Container) uint32 {
	for i := range p.Input.Containers {
		if seen := &p.Input.Containers[i]; seen.ID == c.Id {
			return seen.Attempt
		}
	}
	return c.GetMetadata().GetAttempt()
}

// layer returns what a container has written to its root file system.
func (s *Stats) layer(ctx context.Context, id string) eviction.Usage {
	st, err := s.Runtime.ContainerStats(ctx, id)
	if err != nil {
		if status.Code(err) != codes.NotFound { // removed meanwhile
			klog.FromContext(ctx).Error(err, "Cannot measure the disk usage of a terminated container", "containerID", id)
		}
		return eviction.Usage{}
	}
	l := st.GetWritableLayer()
	return eviction.Usage{Bytes: l.GetUsedBytes().GetValue(), Inodes: l.GetInodesUsed().GetValue()}
}

// usage returns the usage of a directory; zero if unknown.
func usage(f *stats.FsStats) eviction.Usage {
	if f == nil || f.UsedBytes == nil || f.InodesUsed == nil {
		return eviction.Usage{}
	}
	return eviction.Usage{Bytes: *f.UsedBytes, Inodes: *f.InodesUsed}
}
