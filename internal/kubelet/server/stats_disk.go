package server

import (
	"context"
	"time"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/podplan"
)

// Disk measures, now, what the pods that have not ended hold of the node's disk: writable
// layers, logs, and volumes without a file system of their own. VolumeAge must be zero.
func (s *Stats) Disk(ctx context.Context) ([]eviction.Pod, error) {
	list, err := s.Runtime.ListPodSandboxStats(ctx, nil)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var out []eviction.Pod
	for _, p := range s.Pods.List() {
		if p.Plan.Life == podplan.PodTerminated {
			continue
		}
		for _, ps := range list {
			if ps.GetAttributes().GetMetadata().GetUid() != string(p.Pod.UID) {
				continue
			}
			st := s.pod(ps, p, now, false)
			one := eviction.Pod{Pod: p.Pod, Containers: map[string]eviction.Usage{}}
			if e := st.EphemeralStorage; e != nil && e.UsedBytes != nil && e.InodesUsed != nil {
				one.Usage = eviction.Usage{Bytes: *e.UsedBytes, Inodes: *e.InodesUsed}
			}
			for i := range st.Containers {
				one.Containers[st.Containers[i].Name] = held(&st.Containers[i])
			}
			out = append(out, one)
		}
	}
	return out, nil
}

// held is what a container itself holds.
func held(c *stats.ContainerStats) eviction.Usage {
	var u eviction.Usage
	for _, f := range []*stats.FsStats{c.Rootfs, c.Logs} {
		if f != nil && f.UsedBytes != nil && f.InodesUsed != nil {
			u.Bytes += *f.UsedBytes
			u.Inodes += *f.InodesUsed
		}
	}
	return u
}
