package kubelet

import (
	"context"

	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/server"
)

// guardDisk evicts the pods that fill a disk.
func (k *Kubelet) guardDisk(ctx context.Context) error {
	guard, err := eviction.NewGuard(eviction.GuardConfig{
		NodeDir: k.cfg.RootDir, ImageDir: k.imageDir(ctx), Hard: k.cfg.EvictionHard,
		Transition: k.cfg.EvictionPressureTransitionPeriod.Duration, Pods: k.table,
		Meter:  &server.Stats{Runtime: k.deps.Runtime, Pods: k.table, RootDir: k.cfg.RootDir, PodLogs: k.cfg.PodLogsDir, OwnOnly: true},
		Events: k.events, Node: k.node.Ref, Pressed: &k.conditions.DiskPressure, Changed: k.node.Trigger,
		Evicted: func(signal string) { metrics.Evictions.WithLabelValues(signal).Inc() },
	})
	if err != nil {
		return err
	}
	return k.afterSources(guard.Run)(ctx)
}

// imageDir returns where the runtime stores its images.
func (k *Kubelet) imageDir(ctx context.Context) string {
	info, err := k.deps.Images.ImageFsInfo(ctx)
	if err == nil {
		for _, f := range info.GetImageFilesystems() {
			if dir := f.GetFsId().GetMountpoint(); dir != "" {
				return dir
			}
		}
	}
	return k.cfg.RootDir
}
