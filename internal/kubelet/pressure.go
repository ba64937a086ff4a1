package kubelet

import (
	"cmp"
	"context"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/imagegc"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/oom"
	"wherry.dev/internal/kubelet/server"
	"wherry.dev/internal/kubelet/storagelimit"
)

// guardNode removes images that no pod needs, and evicts the pods that use up what the node has.
// watchOOM has an event on the node tell of each process that was killed because the machine had no memory left.
func (k *Kubelet) watchOOM(ctx context.Context) error {
	if k.deps.KernelLog == nil {
		return nil
	}
	return apart(ctx, func(ctx context.Context) error {
		return oom.Watch(ctx, k.deps.KernelLog, func(v oom.Victim) {
			k.events.Eventf(k.node.Ref(), v1.EventTypeWarning, "SystemOOM", "%s", v)
		})
	})
}

func (k *Kubelet) guardNode(ctx context.Context) error {
	imageDir, layerDir := k.imageDirs(ctx)
	images := k.collectsImages(imageDir)
	stats := &server.Stats{Runtime: k.deps.Runtime, Pods: k.table, RootDir: k.cfg.RootDir, PodLogs: k.cfg.PodLogsDir, OwnOnly: true}
	sources := eviction.Sources{
		NodeDir: k.cfg.RootDir, ImageDir: imageDir, LayerDir: layerDir, PIDs: eviction.MachinePIDs,
		Memory: map[string]eviction.MemorySource{eviction.MemoryAvailable: eviction.NodeMemory{Capacity: k.node.Memory(), Events: k.deps.WatchMemory}},
	}
	if k.deps.Cgroups != nil {
		stats.PodCgroup = k.layout.Pod
		sources.Memory[eviction.AllocatableMemory] = eviction.GroupMemory{Path: k.layout.QOS(v1.PodQOSGuaranteed), Events: k.deps.WatchMemory}
	}
	guard, err := eviction.NewGuard(ctx, eviction.GuardConfig{
		Sources: sources, Limits: k.cfg.EvictionLimits(), MaxGrace: int64(k.cfg.EvictionMaxPodGracePeriod), Images: images,
		Transition: k.cfg.EvictionPressureTransitionPeriod.Duration, Pods: k.table, Meter: stats,
		Events: k.events, Node: k.node.Ref, Conditions: &k.conditions.Pressure, Changed: k.node.Trigger,
		Evicted: func(signal string) { metrics.Evictions.WithLabelValues(signal).Inc() },
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return guard.Run(ctx) })
	g.Go(func() error { return images.Run(ctx) })
	if ptr.Deref(k.cfg.LocalStorageCapacityIsolation, true) {
		limits := k.storageLimits(stats, imageDir)
		g.Go(func() error { return limits.Run(ctx) })
	}
	return g.Wait()
}

// storageLimits returns what evicts pods that use more of the disk than their limits allow.
func (k *Kubelet) storageLimits(stats *server.Stats, imageDir string) *storagelimit.Enforcer {
	e := storagelimit.New(storagelimit.Enforcer{
		Pods: k.table, Events: k.events, Evicted: func(signal string) { metrics.Evictions.WithLabelValues(signal).Inc() },
		Meter: server.StorageMeter{Stats: stats, LayersApart: !sameDisk(k.cfg.RootDir, imageDir)},
	})
	k.limits.Store(e)
	return e
}

// sameDisk reports whether two directories are on one disk; also if that cannot be found out.
func sameDisk(a, b string) bool {
	same, err := disk.Same(a, b)
	return err != nil || same
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
	k.keeper.Poke()
	if images := k.images.Load(); images != nil {
		images.Poke()
	}
	if limits := k.limits.Load(); limits != nil {
		limits.Poke()
	}
}

// imageDirs returns where the runtime stores its images and the layers of its containers.
func (k *Kubelet) imageDirs(ctx context.Context) (images, layers string) {
	info, err := k.deps.Images.ImageFsInfo(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The runtime does not say where its images are; taking the node's disk for theirs")
		return k.cfg.RootDir, k.cfg.RootDir
	}
	images = cmp.Or(mountpoint(info.GetImageFilesystems()), k.cfg.RootDir)
	return images, cmp.Or(mountpoint(info.GetContainerFilesystems()), images)
}

func mountpoint(list []*runtimeapi.FilesystemUsage) string {
	for _, f := range list {
		if dir := f.GetFsId().GetMountpoint(); dir != "" {
			return dir
		}
	}
	return ""
}
