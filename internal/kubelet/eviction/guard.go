package eviction

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

const (
	// stuckMost is the longest pause between two looks at a shortage that no eviction would end.
	stuckMost = 10 * time.Second
	// goneWithin is how long the Guard waits for one pod to end before it evicts another; a grace period
	// comes on top.
	goneWithin = 30 * time.Second
	// seenWithin is how long the space that a pod held may take to show as free once the pod is gone.
	seenWithin = 10 * time.Second
	// hardGrace is how long a pod has, in seconds, that is evicted for lack of memory or processes. One
	// that fills the disk has no time at all.
	hardGrace = 1
	// imagesWithin is how long the removal of unused images may keep the Guard from evicting.
	imagesWithin = 5 * time.Second
)

// Pods are the node's pods. *podworker.Pods implements it.
type Pods interface {
	Get(uid types.UID) (podworker.Snapshot, bool)
	Evict(uid types.UID, e podplan.Ending)
	Reclaim(uid types.UID)
	Await(ctx context.Context, uid types.UID, ok func(*podworker.Snapshot) bool)
}

// Meter measures what pods use. *server.Stats implements it.
type Meter interface {
	// Disk measures disk space and inodes, Compute memory and processes.
	Disk(ctx context.Context) ([]Pod, error)
	Compute(ctx context.Context) ([]Pod, error)
	// ContainerMemory returns what the containers of a pod use.
	ContainerMemory(ctx context.Context, pod *v1.Pod) (map[string]Usage, error)
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
	AnnotatedEventf(object runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any)
}

// GuardConfig says what a Guard watches and whom it notifies.
type GuardConfig struct {
	// Sources of what there is.
	Sources Sources
	Limits  Limits
	// MaxGrace is how long pods have, in seconds, that are evicted at a soft threshold; below 0, as long as
	// they want.
	MaxGrace int64
	// Transition is how long a condition outlasts its cause.
	Transition time.Duration
	Pods       Pods
	Meter      Meter
	// Images, if not nil, go before pods.
	Images Images
	Events Events
	// Node is the object of events that concern no pod.
	Node func() *v1.ObjectReference
	// Conditions of the node; Changed is called when they changed.
	Conditions *Conditions
	Changed    func()
	// Evicted is called for each eviction, with its signal.
	Evicted func(signal string)
}

// Guard watches the node. If it is short of something, it removes, until there is enough again: what pods
// that have ended left behind and images that no pod needs, if those are of use; and then the pods that use
// most of it, one at a time.
type Guard struct {
	cfg        GuardConfig
	watch      *watch
	thresholds []Threshold
	disks      Disks
	state      State
	told       map[string]bool // signals of shortages that an event has reported
	// A shortage that no eviction would end is looked at less and less often while it does not
	// change.
	stuck map[string]standstill
}

type standstill struct {
	wait time.Duration
	free int64
}

// NewGuard checks the thresholds against the node and returns a Guard.
func NewGuard(ctx context.Context, cfg GuardConfig) (*Guard, error) {
	g := &Guard{cfg: cfg, watch: newWatch(cfg.Sources), stuck: map[string]standstill{}, told: map[string]bool{}}
	rules, err := Parse(cfg.Limits)
	if err != nil {
		return nil, err
	}
	now, err := g.watch.look(ctx, nil)
	if err != nil {
		return nil, err
	}
	var never []Threshold
	if g.thresholds, never, err = Resolve(rules, now.levels); err != nil {
		return nil, err
	}
	for _, t := range never {
		klog.FromContext(ctx).Error(nil, "An eviction threshold asks for more than the node has and is ignored", "signal", t.Signal, "threshold", t.Least)
	}
	g.disks = now.disks
	return g, nil
}

// Run watches until the context ends; without thresholds and images there is nothing to do. The caller
// first waits until all sources have synced: a pod whose source has not spoken yet must not be evicted.
func (g *Guard) Run(ctx context.Context) error {
	defer g.watch.stop()
	for ctx.Err() == nil && (len(g.thresholds) > 0 || g.cfg.Images != nil) {
		g.watch.sleep(ctx, g.step(ctx))
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

// step looks once, and makes room if necessary. It returns when to look again.
func (g *Guard) step(ctx context.Context) time.Duration {
	now, err := g.watch.look(ctx, g.thresholds)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot measure what is free on the node")
		return goneWithin
	}
	if g.cfg.Images != nil {
		g.cfg.Images.Saw(now.image)
	}
	found := g.state.Look(g.thresholds, now.levels, g.cfg.Transition, time.Now())
	if g.cfg.Conditions.set(found.Conditions) {
		g.cfg.Changed()
	}
	next := g.watch.next(&now, g.thresholds)
	if found.Next > 0 {
		next = min(next, found.Next)
	}
	g.forget(found.Due)
	if len(found.Due) == 0 {
		return next
	}
	wait := stuckMost
	for _, short := range found.Due {
		again, acted := g.relieve(ctx, short)
		if acted {
			return 0
		}
		wait = min(wait, again)
	}
	return wait
}

// forget drops what is remembered of shortages that are over.
func (g *Guard) forget(due []Shortage) {
	over := func(signal string) bool {
		return !slices.ContainsFunc(due, func(s Shortage) bool { return s.Signal == signal })
	}
	maps.DeleteFunc(g.told, func(signal string, _ bool) bool { return over(signal) })
	maps.DeleteFunc(g.stuck, func(signal string, _ standstill) bool { return over(signal) })
}

// relieve does one thing against a shortage, and reports whether there was one; if not, it returns when to
// look again.
func (g *Guard) relieve(ctx context.Context, short Shortage) (again time.Duration, acted bool) {
	log := klog.FromContext(ctx)
	if !g.told[short.Signal] {
		g.told[short.Signal] = true
		log.Info("The node is short of a resource", "resource", short.resource(), "signal", short.Signal, "free", short.Free, "threshold", short.Least)
		g.cfg.Events.Eventf(g.cfg.Node(), v1.EventTypeWarning, "EvictionThresholdMet", "%s", short.Reclaiming())
	}
	list, err := g.measure(ctx, short)
	if err != nil {
		log.Error(err, "Cannot measure what pods use", "signal", short.Signal)
		return time.Second, false
	}
	victim, found := Choose(short, g.evictable(list))
	if (!found || !victim.Ended) && g.disks.FreedByImages(short) && g.deleteImages(ctx) {
		return 0, true
	}
	if !found {
		return g.standstill(log, short, list), false
	}
	delete(g.stuck, short.Signal)
	if victim.Ended {
		g.reclaim(ctx, short, victim)
	} else {
		g.evict(ctx, short, victim)
	}
	g.awaitRoom(ctx, short, victim, list)
	return 0, true
}

func (g *Guard) measure(ctx context.Context, short Shortage) ([]Pod, error) {
	if !short.onDisk() {
		return g.cfg.Meter.Compute(ctx)
	}
	list, err := g.cfg.Meter.Disk(ctx)
	return g.disks.On(short, list), err
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

// standstill reports once that evicting any of the candidates would not help, and which pod uses most. It
// returns when to look again.
func (g *Guard) standstill(log klog.Logger, short Shortage, list []Pod) time.Duration {
	const less = 1 << 20
	st, was := g.stuck[short.Signal]
	switch {
	case !was:
		message := short.Reclaiming() + ": no evictable pod uses much of it"
		if len(list) > 0 {
			most := slices.MaxFunc(list, func(a, b Pod) int { return cmp.Compare(a.burden(short.Threshold), b.burden(short.Threshold)) })
			message += fmt.Sprintf("; the largest user is pod %s, with %s", klog.KObj(most.Pod), mebi(short, most))
		}
		log.Info("The node is still short of a resource", "signal", short.Signal, "reason", message)
		if short.onDisk() {
			g.cfg.Events.Eventf(g.cfg.Node(), v1.EventTypeWarning, "FreeDiskSpaceFailed", "%s", message)
		}
		st.wait = time.Second
	case short.Free < st.free-less:
		st.wait = time.Second
	default:
		st.wait = min(2*st.wait, stuckMost)
	}
	st.free = short.Free
	g.stuck[short.Signal] = st
	return st.wait
}

func mebi(short Shortage, p Pod) string {
	if r := short.resource(); r == resourceInodes || r == resourcePIDs {
		return fmt.Sprintf("%d", p.burden(short.Threshold))
	}
	return fmt.Sprintf("%d MiB", p.burden(short.Threshold)>>20)
}

// evictable leaves out the pods that the node itself needs, and those from which nothing more can
// be reclaimed. A pod that is ending with its grace period stays a candidate: it may use more until
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

// grace returns how long a pod has to end, in seconds.
func (g *Guard) grace(short Shortage, victim Pod) int64 {
	own := ptr.Deref(victim.Pod.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	switch {
	case short.Grace > 0 && g.cfg.MaxGrace < 0:
		return own
	case short.Grace > 0:
		return min(own, g.cfg.MaxGrace)
	case short.onDisk():
		return 0
	default:
		return min(own, hardGrace)
	}
}

// evict ends a pod, and waits until what it used is free.
func (g *Guard) evict(ctx context.Context, short Shortage, victim Pod) {
	log, grace := klog.FromContext(ctx), g.grace(short, victim)
	if short.resource() == v1.ResourceMemory {
		victim.Containers = g.containerMemory(ctx, victim.Pod)
	}
	message, annotations := Message(short, victim)
	log.Info("Evicting pod", "pod", klog.KObj(victim.Pod), "podUID", victim.Pod.UID, "used", victim.burden(short.Threshold), "signal", short.Signal, "gracePeriod", grace)
	g.cfg.Evicted(short.Signal)
	g.cfg.Pods.Evict(victim.Pod.UID, podplan.Ending{
		Since: time.Now().Round(0).UTC(), Reason: podplan.ReasonEvicted, Message: message, Grace: &grace,
		Disruption: v1.PodReasonTerminationByKubelet, Reclaim: true,
	})
	tell := func() {
		g.cfg.Events.AnnotatedEventf(victim.Pod, annotations, v1.EventTypeWarning, podplan.ReasonEvicted, "%s", message)
	}
	if short.onDisk() {
		defer tell() // an API server whose disk is full takes no events: this one waits until there is room
	} else {
		tell()
	}
	g.awaitGone(ctx, short, victim, time.Duration(grace)*time.Second)
}

// containerMemory measures what the message says about a pod's containers; nothing if that takes long.
func (g *Guard) containerMemory(ctx context.Context, pod *v1.Pod) map[string]Usage {
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	out, err := g.cfg.Meter.ContainerMemory(within, pod)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Cannot measure the memory of the evicted pod's containers", "pod", klog.KObj(pod), "err", err)
	}
	return out
}

// awaitGone waits for the end of a pod. A pod that has a grace period is not waited for any longer when a
// hard threshold is crossed.
func (g *Guard) awaitGone(ctx context.Context, short Shortage, victim Pod, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace+goneWithin)
	defer cancel()
	if short.Grace == 0 {
		g.cfg.Pods.Await(ctx, victim.Pod.UID, terminated)
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		g.cfg.Pods.Await(ctx, victim.Pod.UID, terminated)
	}()
	for g.waits(ctx, gone) {
		now, err := g.watch.look(ctx, g.thresholds)
		if err == nil && slices.ContainsFunc(g.thresholds, func(t Threshold) bool {
			level, ok := now.levels[t.Signal]
			return ok && t.Grace == 0 && level.Free < t.Least
		}) {
			break
		}
	}
	cancel()
	<-gone
}

func terminated(s *podworker.Snapshot) bool { return s.Plan.Life == podplan.PodTerminated }

// waits pauses between two looks, and reports false if the wait is over.
func (g *Guard) waits(ctx context.Context, gone <-chan struct{}) bool {
	t := time.NewTimer(pollSoonest)
	defer t.Stop()
	select {
	case <-gone:
		return false
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// awaitRoom waits until the node shows what a pod held as free: the kernel frees large files in the
// background, and until then another pod would be evicted for nothing. It waits only for a short
// time, and stops waiting if another pod continues to use more.
func (g *Guard) awaitRoom(ctx context.Context, low Shortage, gone Pod, before []Pod) {
	ctx, cancel := context.WithTimeout(ctx, seenWithin)
	defer cancel()
	for ctx.Err() == nil {
		look, err := g.watch.look(ctx, g.thresholds)
		if err != nil {
			return // the next step reports it
		}
		now := low
		if now.Free = look.levels[low.Signal].Free; now.lacks() == 0 || GivenBack(low, now, gone) {
			return
		}
		if now.Free < low.Free {
			low = now
		}
		list, err := g.measure(ctx, now)
		if err != nil || Grows(now, before, list, gone) {
			return
		}
		sleep(ctx, 100*time.Millisecond)
	}
}
