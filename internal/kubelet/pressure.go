package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/eviction"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
	"wherry.dev/internal/kubelet/server"
)

// stuckMost is the longest pause between two looks at a disk that no pod's end would mend.
const stuckMost = 10 * time.Second

// goneWithin is how long the end of one pod is waited for before another one goes.
const goneWithin = 30 * time.Second

// seenWithin is how long what a pod held may take to show as free room once it is gone.
const seenWithin = 10 * time.Second

// pressure is the node's watch over its disks.
type pressure struct {
	k          *Kubelet
	nodeDir    string
	imageDir   string // the same where nobody tells
	thresholds []eviction.Threshold
	usage      *server.Stats
	// until is how long the condition outlasts its cause.
	until time.Time
	told  string // the signal of which an event has told
	// What no pod's end would mend is looked at less and less often, while it stands still.
	stuck     time.Duration
	stuckFree int64
}

// guardDisk watches the disks, and evicts the pods that fill them: the greatest first,
// one at a time, until there is room again.
func (k *Kubelet) guardDisk(ctx context.Context) error {
	p := &pressure{k: k, nodeDir: k.cfg.RootDir, imageDir: k.imageDir(ctx), usage: &server.Stats{
		Runtime: k.deps.Runtime, Pods: k.table, RootDir: k.cfg.RootDir, PodLogs: k.cfg.PodLogsDir,
	}}
	node, image, err := p.look()
	if err == nil {
		p.thresholds, err = eviction.ParseThresholds(k.cfg.EvictionHard, node, image)
	}
	if err != nil {
		return err
	}
	if len(p.thresholds) == 0 {
		return nil
	}
	select {
	case <-k.synced: // nobody is evicted for whom a source has not spoken yet
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		sleep(ctx, p.step(ctx))
	}
	return nil
}

// imageDir is where the runtime keeps its images.
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

func (p *pressure) look() (node, image disk.Room, err error) {
	if node, err = disk.Look(p.nodeDir); err != nil {
		return node, image, err
	}
	image, err = disk.Look(p.imageDir)
	return node, image, err
}

// step looks once, and makes room if need be. It returns when to look again.
func (p *pressure) step(ctx context.Context) time.Duration {
	log := klog.FromContext(ctx)
	node, image, err := p.look()
	if err != nil {
		log.Error(err, "The room on the node's disks is not known")
		return goneWithin
	}
	short, is := eviction.Short(p.thresholds, node, image)
	p.press(is)
	if !is {
		p.told, p.stuck = "", 0
		return p.next(node, image)
	}
	if p.told != short.Signal {
		p.told = short.Signal
		log.Info("A disk of the node is short of room", "signal", short.Signal, "free", short.Free, "threshold", short.Least)
		p.k.events.Eventf(p.k.node.Ref(), v1.EventTypeWarning, "EvictionThresholdMet", "%s", short.Reclaiming())
	}
	pods, err := p.usage.Disk(ctx)
	if err != nil {
		log.Error(err, "What the pods hold of the disk is not known")
		return time.Second
	}
	victim, found := eviction.Choose(short, p.evictable(pods))
	if !found {
		return p.standstill(log, short, pods)
	}
	p.stuck = 0
	if victim.Ended {
		p.reclaim(ctx, short, victim)
	} else {
		p.evict(ctx, short, victim)
	}
	p.awaitRoom(ctx, short, victim, pods)
	return 0
}

// standstill tells once that no pod may go whose end would make room, and which one holds
// most. It returns when to look again.
func (p *pressure) standstill(log klog.Logger, short eviction.Shortage, pods []eviction.Pod) time.Duration {
	const less = 1 << 20
	switch {
	case p.stuck == 0:
		message := short.Reclaiming() + ": no pod that may be evicted holds much of it"
		if len(pods) > 0 {
			most := slices.MaxFunc(pods, func(a, b eviction.Pod) int { return cmp.Compare(a.Bytes, b.Bytes) })
			message += fmt.Sprintf("; of all pods %s holds most, %d MiB", klog.KObj(most.Pod), most.Bytes>>20)
		}
		log.Info("A disk of the node stays short of room", "signal", short.Signal, "reason", message)
		p.k.events.Eventf(p.k.node.Ref(), v1.EventTypeWarning, "FreeDiskSpaceFailed", "%s", message)
		p.stuck = time.Second
	case short.Free < p.stuckFree-less:
		p.stuck = time.Second
	default:
		p.stuck = min(2*p.stuck, stuckMost)
	}
	p.stuckFree = short.Free
	return p.stuck
}

// next is when the first of the disks can be short of room.
func (p *pressure) next(node, image disk.Room) time.Duration {
	next := goneWithin
	for _, t := range p.thresholds {
		room := node
		if t.Signal == eviction.ImageFsAvailable || t.Signal == eviction.ImageFsInodesFree {
			room = image
		}
		if t.Inodes() {
			next = min(next, room.NextLook(0))
		} else {
			next = min(next, room.NextLook(uint64(t.Least)))
		}
	}
	if p.k.conditions.DiskPressure.Load() {
		next = min(next, max(time.Until(p.until), time.Millisecond))
	}
	return next
}

// press keeps the node's condition, which outlasts its cause for a while.
func (p *pressure) press(short bool) {
	now := time.Now()
	if short {
		p.until = now.Add(p.k.cfg.EvictionPressureTransitionPeriod.Duration)
	}
	if pressed := short || now.Before(p.until); p.k.conditions.DiskPressure.Swap(pressed) != pressed {
		p.k.node.Trigger()
	}
}

// evictable leaves out the pods that the node itself needs, and those of which nothing more
// is to be had. One that ends in its own time is not among these: it may write until then.
func (p *pressure) evictable(all []eviction.Pod) []eviction.Pod {
	var out []eviction.Pod
	for _, c := range all {
		s, ok := p.k.table.Get(c.Pod.UID)
		if !ok {
			continue
		}
		e := s.Plan.Record.Ending
		if c.Ended && e != nil && !e.Reclaim || !c.Ended && !pods.IsCritical(c.Pod) && (e == nil || e.Deadline(s.Pod).After(time.Now())) {
			out = append(out, c)
		}
	}
	return out
}

// reclaim takes away what is left of the containers of a pod that has ended, and waits until
// it is given back. Its status stays as it is.
func (p *pressure) reclaim(ctx context.Context, short eviction.Shortage, ended eviction.Pod) {
	klog.FromContext(ctx).Info("Removing the containers of a pod that has ended", "pod", klog.KObj(ended.Pod), "podUID", ended.Pod.UID,
		"bytes", ended.Bytes, "inodes", ended.Inodes, "signal", short.Signal)
	p.k.table.Reclaim(ended.Pod.UID)
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	p.k.awaitPod(ctx, ended.Pod.UID, func(s *podworker.Snapshot) bool { return len(s.Input.Containers) == 0 })
}

// evict ends a pod at once, and waits until what it held is given back.
func (p *pressure) evict(ctx context.Context, short eviction.Shortage, victim eviction.Pod) {
	message := eviction.Message(short, victim)
	klog.FromContext(ctx).Info("Evicting a pod", "pod", klog.KObj(victim.Pod), "podUID", victim.Pod.UID, "bytes", victim.Bytes, "inodes", victim.Inodes, "signal", short.Signal)
	metrics.Evictions.WithLabelValues(short.Signal).Inc()
	p.k.table.Evict(victim.Pod.UID, podplan.Ending{
		Since: time.Now().Round(0).UTC(), Reason: podplan.ReasonEvicted, Message: message, Grace: new(int64),
		Disruption: v1.PodReasonTerminationByKubelet, Reclaim: true,
	})
	// The API server of a full disk takes no events: this one waits until there is room.
	defer p.k.events.Eventf(victim.Pod, v1.EventTypeWarning, podplan.ReasonEvicted, "%s", message)
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	p.k.awaitPod(ctx, victim.Pod.UID, func(s *podworker.Snapshot) bool { return s.Plan.Life == podplan.PodTerminated })
}

// awaitRoom waits until what a pod held shows on the disk: the kernel lets go of large files
// in the background, and meanwhile another pod would go for nothing. It waits for no more
// than a moment, and not at all while another pod goes on to fill the disk.
func (p *pressure) awaitRoom(ctx context.Context, low eviction.Shortage, gone eviction.Pod, before []eviction.Pod) {
	ctx, cancel := context.WithTimeout(ctx, seenWithin)
	defer cancel()
	for ctx.Err() == nil {
		node, image, err := p.look()
		if err != nil {
			return // the next step tells
		}
		now, short := eviction.Short(p.thresholds, node, image)
		if !short || eviction.GivenBack(low, now, gone) {
			return
		}
		if now.Free < low.Free {
			low = now
		}
		pods, err := p.usage.Disk(ctx)
		if err != nil || eviction.Grows(now, before, pods, gone) {
			return
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// awaitPod waits until a pod is as wanted, or gone, or the context ends.
func (k *Kubelet) awaitPod(ctx context.Context, uid types.UID, ok func(*podworker.Snapshot) bool) {
	for {
		s, known := k.table.Get(uid)
		if !known || ok(&s) {
			return
		}
		select {
		case <-s.Superseded:
		case <-ctx.Done():
			return
		}
	}
}
