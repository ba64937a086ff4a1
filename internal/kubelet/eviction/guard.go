package eviction

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// stuckMost is the longest pause between two looks at a disk that no eviction would help.
const stuckMost = 10 * time.Second

// goneWithin is how long the Guard waits for one pod to end before it evicts another.
const goneWithin = 30 * time.Second

// seenWithin is how long the space that a pod held may take to show as free once the pod is gone.
const seenWithin = 10 * time.Second

// imagesWithin is how long the removal of unused images may keep the Guard from evicting.
const imagesWithin = 5 * time.Second

// Pods are the node's pods. *podworker.Pods implements it.
type Pods interface {
	Get(uid types.UID) (podworker.Snapshot, bool)
	Evict(uid types.UID, e podplan.Ending)
	Reclaim(uid types.UID)
	Await(ctx context.Context, uid types.UID, ok func(*podworker.Snapshot) bool)
}

// Meter measures what pods use. *server.Stats implements it.
type Meter interface {
	Disk(ctx context.Context) ([]Pod, error)
}

// Images are those that no pod needs. *imagegc.Collector implements it.
type Images interface {
	// Saw is told what the images' disk looks like.
	Saw(room disk.Room)
	// DeleteUnused removes them, and returns how many bytes that gave back.
	DeleteUnused(ctx context.Context) (uint64, error)
}

// Events records what is done, and why.
type Events interface {
	Eventf(object runtime.Object, eventType, reason, format string, args ...any)
}

// GuardConfig says what a Guard watches and whom it notifies.
type GuardConfig struct {
	// NodeDir and ImageDir are directories on the node's disk and on the disk of its images.
	NodeDir, ImageDir string
	// Hard is --eviction-hard.
	Hard map[string]string
	// Transition is how long the condition outlasts its cause.
	Transition time.Duration
	Pods       Pods
	Meter      Meter
	// Images, if not nil, go before pods.
	Images Images
	Events Events
	// Node is the object of events that concern no pod.
	Node func() *v1.ObjectReference
	// Pressed is the node's condition; Changed is called when it changed.
	Pressed *atomic.Bool
	Changed func()
	// Evicted is called for each eviction, with its signal.
	Evicted func(signal string)
}

// Guard watches the node's disks. If one is short of space it removes, until there is enough again: what
// pods that have ended left behind, images that no pod needs, and then the pods that fill the disk, the
// largest first, one at a time.
type Guard struct {
	cfg        GuardConfig
	thresholds []Threshold
	// until is when the condition ends unless its cause returns.
	until time.Time
	told  string // the signal that the last event reported
	// A shortage that no eviction would end is looked at less and less often while it does not
	// change.
	stuck     time.Duration
	stuckFree int64
}

// NewGuard checks the thresholds against the disks and returns a Guard.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	g := &Guard{cfg: cfg}
	node, image, err := g.look()
	if err == nil {
		g.thresholds, err = ParseThresholds(cfg.Hard, node, image)
	}
	return g, err
}

// Run watches until the context ends; without thresholds and images there is nothing to do. The caller first
// waits until all sources have synced: a pod whose source has not spoken yet must not be evicted.
func (g *Guard) Run(ctx context.Context) error {
	for ctx.Err() == nil && (len(g.thresholds) > 0 || g.cfg.Images != nil) {
		sleep(ctx, g.step(ctx))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (g *Guard) look() (node, image disk.Room, err error) {
	if node, err = disk.Look(g.cfg.NodeDir); err != nil {
		return node, image, err
	}
	image, err = disk.Look(g.cfg.ImageDir)
	return node, image, err
}

// step looks once, and makes room if necessary. It returns when to look again.
func (g *Guard) step(ctx context.Context) time.Duration {
	log := klog.FromContext(ctx)
	node, image, err := g.look()
	if err != nil {
		log.Error(err, "Cannot measure free space on the node's disks")
		return goneWithin
	}
	if g.cfg.Images != nil {
		g.cfg.Images.Saw(image)
	}
	short, is := Short(g.thresholds, node, image)
	g.press(is)
	if !is {
		g.told, g.stuck = "", 0
		return g.next(node, image)
	}
	if g.told != short.Signal {
		g.told = short.Signal
		log.Info("A disk of the node is short of space", "signal", short.Signal, "free", short.Free, "threshold", short.Least)
		g.cfg.Events.Eventf(g.cfg.Node(), v1.EventTypeWarning, "EvictionThresholdMet", "%s", short.Reclaiming())
	}
	pods, err := g.cfg.Meter.Disk(ctx)
	if err != nil {
		log.Error(err, "Cannot measure the pods' disk usage")
		return time.Second
	}
	victim, found := Choose(short, g.evictable(pods))
	if !(found && victim.Ended) && FreesByImages(short.Signal, node, image) && g.deleteImages(ctx) {
		return 0
	}
	if !found {
		return g.standstill(log, short, pods)
	}
	g.stuck = 0
	if victim.Ended {
		g.reclaim(ctx, short, victim)
	} else {
		g.evict(ctx, short, victim)
	}
	g.awaitRoom(ctx, short, victim, pods)
	return 0
}

// deleteImages removes the images that no pod needs, and reports whether that gave anything back. It does
// not wait long for it: meanwhile a pod goes on to fill the disk.
func (g *Guard) deleteImages(ctx context.Context) bool {
	if g.cfg.Images == nil {
		return false
	}
	within, cancel := context.WithTimeout(ctx, imagesWithin)
	defer cancel()
	freed, err := g.cfg.Images.DeleteUnused(within)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot remove unused images to make room", "freed", freed)
	}
	return freed > 0
}

// standstill reports once that evicting any of the candidates would not make room, and which pod
// uses most. It returns when to look again.
func (g *Guard) standstill(log klog.Logger, short Shortage, pods []Pod) time.Duration {
	const less = 1 << 20
	switch {
	case g.stuck == 0:
		message := short.Reclaiming() + ": no evictable pod uses much of it"
		if len(pods) > 0 {
			most := slices.MaxFunc(pods, func(a, b Pod) int { return cmp.Compare(a.Bytes, b.Bytes) })
			message += fmt.Sprintf("; the largest user is pod %s, with %d MiB", klog.KObj(most.Pod), most.Bytes>>20)
		}
		log.Info("A disk of the node is still short of space", "signal", short.Signal, "reason", message)
		g.cfg.Events.Eventf(g.cfg.Node(), v1.EventTypeWarning, "FreeDiskSpaceFailed", "%s", message)
		g.stuck = time.Second
	case short.Free < g.stuckFree-less:
		g.stuck = time.Second
	default:
		g.stuck = min(2*g.stuck, stuckMost)
	}
	g.stuckFree = short.Free
	return g.stuck
}

// next returns how long it takes at least until one of the disks can be short of space.
func (g *Guard) next(node, image disk.Room) time.Duration {
	next := goneWithin
	for _, t := range g.thresholds {
		room := node
		if t.Signal == ImageFsAvailable || t.Signal == ImageFsInodesFree {
			room = image
		}
		if t.Inodes() {
			next = min(next, room.NextLook(0))
		} else {
			next = min(next, room.NextLook(uint64(t.Least)))
		}
	}
	if g.cfg.Pressed.Load() {
		next = min(next, max(time.Until(g.until), time.Millisecond))
	}
	return next
}

// press keeps the node's condition up to date; it outlasts its cause for a while.
func (g *Guard) press(short bool) {
	now := time.Now()
	if short {
		g.until = now.Add(g.cfg.Transition)
	}
	if pressed := short || now.Before(g.until); g.cfg.Pressed.Swap(pressed) != pressed {
		g.cfg.Changed()
	}
}

// evictable leaves out the pods that the node itself needs, and those from which nothing more can
// be reclaimed. A pod that is ending with its grace period stays a candidate: it may write until
// then.
func (g *Guard) evictable(all []Pod) []Pod {
	var out []Pod
	for _, c := range all {
		s, ok := g.cfg.Pods.Get(c.Pod.UID)
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

// reclaim removes what is left of the containers of a pod that has ended, and waits until the space
// is free. The pod's status stays as it is.
func (g *Guard) reclaim(ctx context.Context, short Shortage, ended Pod) {
	klog.FromContext(ctx).Info("Removing the containers of a terminated pod", "pod", klog.KObj(ended.Pod), "podUID", ended.Pod.UID,
		"bytes", ended.Bytes, "inodes", ended.Inodes, "signal", short.Signal)
	g.cfg.Pods.Reclaim(ended.Pod.UID)
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	g.cfg.Pods.Await(ctx, ended.Pod.UID, func(s *podworker.Snapshot) bool { return len(s.Input.Containers) == 0 })
}

// evict ends a pod at once, and waits until the space that it used is free.
func (g *Guard) evict(ctx context.Context, short Shortage, victim Pod) {
	message := Message(short, victim)
	klog.FromContext(ctx).Info("Evicting pod", "pod", klog.KObj(victim.Pod), "podUID", victim.Pod.UID, "bytes", victim.Bytes, "inodes", victim.Inodes, "signal", short.Signal)
	g.cfg.Evicted(short.Signal)
	g.cfg.Pods.Evict(victim.Pod.UID, podplan.Ending{
		Since: time.Now().Round(0).UTC(), Reason: podplan.ReasonEvicted, Message: message, Grace: new(int64),
		Disruption: v1.PodReasonTerminationByKubelet, Reclaim: true,
	})
	// An API server whose disk is full takes no events: this one waits until there is room.
	defer g.cfg.Events.Eventf(victim.Pod, v1.EventTypeWarning, podplan.ReasonEvicted, "%s", message)
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	g.cfg.Pods.Await(ctx, victim.Pod.UID, func(s *podworker.Snapshot) bool { return s.Plan.Life == podplan.PodTerminated })
}

// awaitRoom waits until the disk shows what a pod held as free: the kernel frees large files in the
// background, and until then another pod would be evicted for nothing. It waits only for a short
// time, and stops waiting if another pod continues to fill the disk.
func (g *Guard) awaitRoom(ctx context.Context, low Shortage, gone Pod, before []Pod) {
	ctx, cancel := context.WithTimeout(ctx, seenWithin)
	defer cancel()
	for ctx.Err() == nil {
		node, image, err := g.look()
		if err != nil {
			return // the next step reports it
		}
		now, short := Short(g.thresholds, node, image)
		if !short || GivenBack(low, now, gone) {
			return
		}
		if now.Free < low.Free {
			low = now
		}
		pods, err := g.cfg.Meter.Disk(ctx)
		if err != nil || Grows(now, before, pods, gone) {
			return
		}
		sleep(ctx, 100*time.Millisecond)
	}
}
