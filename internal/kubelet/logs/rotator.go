package logs

import (
	"context"
	"maps"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Container is a container with the log that it writes to, or has written to.
type Container struct {
	ID, Path string
	Ended    bool
}

// Watcher reports the next write to each log that it is asked to watch. *Watch implements it.
type Watcher interface {
	Next(path string) error
	Run(ctx context.Context, written func(path string)) error
}

// How soon after a look the next write to the same log is of interest. The faster the log has
// grown, the sooner, since it can reach its limit sooner.
const (
	soonestLook  = 20 * time.Millisecond
	latestLook   = 100 * time.Millisecond
	startsSettle = 200 * time.Millisecond
)

// RotatorConfig configures a Rotator.
type RotatorConfig struct {
	Limits Limits
	// Every is the time between two looks at all logs.
	Every time.Duration
	// Workers is how many logs are handled at the same time; never the same log twice.
	Workers int
}

// Rotator keeps the logs of running containers from growing without bound. A write wakes it; for a
// while after that no further write to the same log does, so that a flood is limited while it is
// written, and a log that grows slowly costs next to nothing. A periodic look at all logs finds
// what no event reported. Once, it also tidies up what an interrupted rotation left of the log of a
// container that has ended: nothing else would.
type Rotator struct {
	cfg        RotatorConfig
	runtime    Reopener
	containers func() []Container
	watch      Watcher
	started    chan struct{}                    // capacity 1: a container runs that did not run before
	queue      workqueue.TypedInterface[string] // of paths: never two workers on one

	mu    sync.Mutex
	known map[string]Container // by path
	seen  map[string]growth    // by path, for the known ones
}

// growth is the size of a log at the last look, and when it was last rotated.
type growth struct {
	size        int64
	at, rotated time.Time
}

// NewRotator returns a Rotator for the logs of the containers that exist at any time.
func NewRotator(cfg RotatorConfig, runtime Reopener, containers func() []Container, watch Watcher) *Rotator {
	return &Rotator{
		cfg: cfg, runtime: runtime, containers: containers, watch: watch, started: make(chan struct{}, 1),
		queue: workqueue.NewTyped[string](), known: map[string]Container{}, seen: map[string]growth{},
	}
}

// Run rotates until the context ends.
func (r *Rotator) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.watch.Run(ctx, r.written) })
	for range r.cfg.Workers {
		g.Go(func() error {
			r.work(ctx)
			return nil
		})
	}
	g.Go(func() error {
		r.lookAtAll(ctx)
		return nil
	})
	return g.Wait()
}

// lookAtAll queues every log periodically, and new logs when containers are seen running, as all
// are when the kubelet starts.
func (r *Rotator) lookAtAll(ctx context.Context) {
	defer r.queue.ShutDown()
	due := time.NewTimer(r.cfg.Every)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.started:
			select { // they come in batches
			case <-time.After(startsSettle):
			case <-ctx.Done():
			}
			r.queueAll(false)
		case <-due.C:
			r.queueAll(true)
			due.Reset(r.cfg.Every)
		}
	}
}

// Look makes the rotator look for logs that it does not know yet.
func (r *Rotator) Look() {
	select {
	case r.started <- struct{}{}:
	default:
	}
}

func (r *Rotator) queueAll(also bool) {
	now := map[string]Container{}
	for _, l := range r.containers() {
		now[l.Path] = l
	}
	r.mu.Lock()
	before := r.known
	r.known = now
	maps.DeleteFunc(r.seen, func(path string, _ growth) bool { return now[path].ID == "" })
	r.mu.Unlock()
	for path, l := range now {
		if also && !l.Ended || before[path] != l {
			r.queue.Add(path)
		}
	}
}

// written queues a log that was written to.
func (r *Rotator) written(path string) {
	if _, ok := r.log(path); ok {
		r.queue.Add(path)
	}
}

func (r *Rotator) log(path string) (Container, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.known[path]
	return l, ok
}

func (r *Rotator) work(ctx context.Context) {
	for {
		path, down := r.queue.Get()
		if down {
			return
		}
		l, ok := r.log(path)
		switch {
		case ctx.Err() != nil || !ok: // the queue is drained, and nothing else is done
		case l.Ended:
			if err := Settle(path); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to tidy up the log of a terminated container", "containerID", l.ID, "path", path)
			}
		default:
			r.look(ctx, l)
		}
		r.queue.Done(path)
	}
}

// look rotates a log if it has grown too large, and asks for its next write to be reported, but not
// too soon. Older files are compressed once the log has calmed down.
func (r *Rotator) look(ctx context.Context, l Container) {
	log := klog.FromContext(ctx)
	pause := r.pause(l.Path, time.Now())
	done, err := Rotate(ctx, r.runtime, l.ID, l.Path, r.cfg.Limits, time.Now())
	if err == nil && r.calm(l.Path, done, time.Now()) {
		err = Compress(l.Path)
	}
	if err != nil && ctx.Err() == nil {
		log.Error(err, "Failed to rotate log for container", "containerID", l.ID, "path", l.Path)
	}
	time.AfterFunc(pause, func() {
		if ctx.Err() != nil {
			return
		}
		if err := r.watch.Next(l.Path); err != nil {
			log.Error(err, "Cannot watch a container's log, checking its size periodically instead", "containerID", l.ID)
		}
	})
}

// pause returns how long the log is left alone after this look: half the time in which it can reach
// its limit.
func (r *Rotator) pause(path string, now time.Time) time.Duration {
	info, err := os.Stat(path)
	if err != nil {
		return latestLook
	}
	size := info.Size()
	r.mu.Lock()
	before, ok := r.seen[path]
	r.seen[path] = growth{size, now, before.rotated}
	r.mu.Unlock()
	if size < before.size { // it was rotated in between
		before.size = 0
	}
	grown, room := float64(size-before.size), float64(r.cfg.Limits.MaxSize)
	if size < r.cfg.Limits.MaxSize {
		room -= float64(size)
	}
	if !ok || grown <= 0 {
		return latestLook
	}
	due := room / grown * float64(now.Sub(before.at)) / 2
	return time.Duration(min(max(due, float64(soonestLook)), float64(latestLook)))
}

// calm notes whether a log was rotated, and reports whether the last rotation was long ago:
// compressing takes longer than a flood needs to fill the next file.
func (r *Rotator) calm(path string, rotated bool, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.seen[path]
	if rotated {
		g.rotated = now
		r.seen[path] = g
	}
	return now.Sub(g.rotated) >= r.cfg.Every
}
