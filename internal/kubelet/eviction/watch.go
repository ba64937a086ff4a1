package eviction

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/disk"
)

const (
	// pollSoonest is the shortest pause between two looks at memory and processes, pollLatest the longest.
	pollSoonest = 250 * time.Millisecond
	pollLatest  = 10 * time.Second
	// wokenSoonest is the shortest pause if the kernel tells something.
	wokenSoonest = 50 * time.Millisecond
	// What the programs of one machine can take in a second, roughly: memory in bytes, and processes.
	memoryRate, pidRate = 4 << 30, 20_000
	// rearmAfter is how often the kernel is told at most what to wait for.
	rearmAfter = 10 * time.Second
)

// Memory is what a group of processes has, or the whole machine.
type Memory struct {
	Level
	// Usage is what the kernel counts as used, which includes files that it can drop at once.
	Usage uint64
}

// MemorySource measures memory, and may tell when its usage grows.
type MemorySource interface {
	Look() (Memory, error)
	// Watch calls wake, which must not block, when usage crosses a mark or, where the kernel knows no
	// marks (exact is false), when programs wait for memory.
	Watch(mark uint64, wake func()) (stop func(), exact bool, err error)
}

// Sources are where a Guard looks. All answer from the kernel's memory.
type Sources struct {
	// NodeDir, ImageDir and LayerDir are directories on the node's disk, on the disk of its images, and on
	// that of containers' layers.
	NodeDir, ImageDir, LayerDir string
	// Memory by signal; nil without any.
	Memory map[string]MemorySource
	// PIDs, if not nil, counts the machine's processes.
	PIDs func() (Level, error)
}

// reading is what was seen at one look.
type reading struct {
	levels      Levels
	node, image disk.Room
	disks       Disks
}

// watch looks at the sources, and wakes the Guard when the kernel tells something.
type watch struct {
	Sources
	wake  chan struct{} // capacity 1
	armed map[string]armed
	deaf  map[string]bool // sources that cannot be watched
	blind map[string]bool // sources that could not be read at the last look
}

type armed struct {
	mark uint64
	at   time.Time
	stop func()
	// exact: the kernel tells when the threshold is crossed, if no files are dropped before that.
	exact bool
}

func newWatch(s Sources) *watch {
	return &watch{Sources: s, wake: make(chan struct{}, 1), armed: map[string]armed{}, deaf: map[string]bool{}, blind: map[string]bool{}}
}

// look reads all levels. What cannot be read has none, except for disks.
func (w *watch) look(ctx context.Context, list []Threshold) (reading, error) {
	r := reading{levels: Levels{}}
	var err error
	if r.node, err = disk.Look(w.NodeDir); err != nil {
		return r, err
	}
	if r.image, err = disk.Look(w.ImageDir); err != nil {
		return r, err
	}
	layers, err := disk.Look(w.LayerDir)
	if err != nil {
		return r, err
	}
	r.disks = Disks{ImagesApart: r.node.Device != r.image.Device, LayersApart: r.node.Device != layers.Device}
	for _, l := range []struct {
		signal      string
		free, total uint64
	}{
		{NodeFsAvailable, r.node.Free, r.node.Total}, {NodeFsInodesFree, r.node.FreeInodes, r.node.Inodes},
		{ImageFsAvailable, r.image.Free, r.image.Total}, {ImageFsInodesFree, r.image.FreeInodes, r.image.Inodes},
	} {
		r.levels[l.signal] = Level{Free: int64(l.free), Total: int64(l.total)}
	}
	for signal, source := range w.Memory {
		m, err := source.Look()
		if w.seen(ctx, signal, err) {
			r.levels[signal] = m.Level
			w.arm(ctx, signal, source, m, list)
		}
	}
	if w.PIDs != nil {
		l, err := w.PIDs()
		if w.seen(ctx, PIDAvailable, err) {
			r.levels[PIDAvailable] = l
		}
	}
	return r, nil
}

// seen reports whether a source could be read, and says so when that changes.
func (w *watch) seen(ctx context.Context, signal string, err error) bool {
	if err != nil && !w.blind[signal] {
		klog.FromContext(ctx).Error(err, "No observation found for eviction signal", "signal", signal)
	}
	w.blind[signal] = err != nil
	return err == nil
}

// arm has the kernel tell when the usage of memory crosses the next threshold. What it counts includes
// files that can be dropped, so the mark moves with them.
func (w *watch) arm(ctx context.Context, signal string, source MemorySource, m Memory, list []Threshold) {
	least := int64(0)
	for _, t := range list {
		if t.Signal == signal && t.Least < m.Free {
			least = max(least, t.Least)
		}
	}
	old := w.armed[signal]
	mark := m.Usage + uint64(max(m.Free-least, 0))
	if least == 0 || w.deaf[signal] || old.stop != nil && (old.mark == mark || time.Since(old.at) < rearmAfter) {
		return // what is crossed already is known, and looked at as long as it lasts
	}
	if old.stop != nil {
		old.stop()
	}
	stop, exact, err := source.Watch(mark, w.poke)
	if err != nil {
		w.deaf[signal] = true
		delete(w.armed, signal)
		klog.FromContext(ctx).Info("The kernel does not tell when memory runs short, looking from time to time", "signal", signal, "err", err)
		return
	}
	w.armed[signal] = armed{mark: mark, at: time.Now(), stop: stop, exact: exact}
}

func (w *watch) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// stop ends the watching.
func (w *watch) stop() {
	for _, a := range w.armed {
		a.stop()
	}
	clear(w.armed)
}

// sleep pauses until a time has passed or the kernel tells something.
func (w *watch) sleep(ctx context.Context, d time.Duration) {
	if d > wokenSoonest && len(w.armed) > 0 {
		began := time.Now()
		sleep(ctx, wokenSoonest)
		d -= time.Since(began)
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-w.wake:
		case <-ctx.Done():
		}
		return
	}
	sleep(ctx, d)
}

// next returns how long it takes at least until something can run short that the kernel would not tell.
func (w *watch) next(r *reading, list []Threshold) time.Duration {
	next := goneWithin
	for _, t := range list {
		if t.Grace > 0 && r.levels[t.Signal].Free < t.Least {
			continue // it is known, and so is when its grace ends
		}
		if w.armed[t.Signal].exact && far(r.levels[t.Signal], t) {
			next = min(next, pollLatest)
			continue
		}
		switch t.Signal {
		case NodeFsAvailable:
			next = min(next, r.node.NextLook(uint64(t.Least)))
		case ImageFsAvailable:
			next = min(next, r.image.NextLook(uint64(t.Least)))
		case NodeFsInodesFree:
			next = min(next, r.node.NextLook(0))
		case ImageFsInodesFree:
			next = min(next, r.image.NextLook(0))
		case PIDAvailable:
			next = min(next, nextPoll(r.levels[t.Signal].Free-t.Least, pidRate))
		default:
			next = min(next, nextPoll(r.levels[t.Signal].Free-t.Least, memoryRate))
		}
	}
	return next
}

// far reports whether there is so much memory above a threshold that the kernel's word is enough.
func far(l Level, t Threshold) bool { return l.Free-t.Least > max(l.Total/10, 256<<20) }

// nextPoll returns how long it takes to use up what is left, within bounds.
func nextPoll(left, rate int64) time.Duration {
	seconds := float64(max(left, 0)) / float64(rate)
	return min(max(time.Duration(min(seconds, pollLatest.Seconds())*float64(time.Second)), pollSoonest), pollLatest)
}
