package kubelet

import (
	"context"

	"golang.org/x/sync/errgroup"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/imagegc"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/server"
)

// guardDisk removes images that no pod needs, and evicts the pods that fill a disk.
func (k *Kubelet) guardDisk(ctx context.Context) error {
	imageDir := k.imageDir(ctx)
	images := k.collectsImages(imageDir)
	cfg := eviction.GuardConfig{
		NodeDir: k.cfg.RootDir, ImageDir: imageDir, Hard: k.cfg.EvictionHard, Images: images,
		Transition: k.cfg.EvictionPressureTransitionPeriod.Duration, Pods: k.table,
		Meter:  &server.Stats{Runtime: k.deps.Runtime, Pods: k.table, RootDir: k.cfg.RootDir, PodLogs: k.cfg.PodLogsDir},
		Events: k.events, Node: k.node.Ref, Pressed: &k.conditions.DiskPressure, Changed: k.node.Trigger,
		Evicted: func(signal string) { metrics.Evictions.WithLabelValues(signal).Inc() },
	}
	guard, err := eviction.NewGuard(cfg)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return guard.Run(ctx) })
	g.Go(func() error { return images.Run(ctx) })
	return g.Wait()
}

// collectsImages returns what removes images that no pod needs.
func (k *Kubelet) collectsImages(dir string) *imagegc.Collector {
	c := imagegc.New(imagegc.Config{
		Policy: imagegc.Policy{
			High: *k.cfg.ImageGCHighThresholdPercent, Low: *k.cfg.ImageGCLowThresholdPercent,
			MinAge: k.cfg.ImageMinimumGCAge.Duration, MaxAge: k.cfg.ImageMaximumGCAge.Duration,
		},
		Runtime: k.deps.Runtime, Images: k.deps.Images, Pods: k.table, Records: k.pulled,
		Events: k.events, Node: k.node.Ref, Room: func() (disk.Room, error) { return disk.Look(dir) },
		Removed: func(reason string) { metrics.ImagesCollected.WithLabelValues(reason).Inc() }, Changed: k.node.Trigger,
	})
	k.images.Store(c)
	return c
}

// podsChanged notes that pods hold more of the node, or less.
func (k *Kubelet) podsChanged() {
	k.groups.Changed()
	if images := k.images.Load(); images != nil {
		images.Poke()
	}
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
