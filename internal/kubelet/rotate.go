package kubelet

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/podconfig"
	"wherry.dev/internal/kubelet/podplan"
)

// containerLog is what a container writes to, or has written to.
type containerLog struct {
	id, path string
	ended    bool
}

// logWatch tells of the next write to each log that it is asked for. *logs.Watch is one.
type logWatch interface {
	Next(path string) error
	Run(ctx context.Context, written func(path string)) error
}

func openLogWatch() (logWatch, error) { return logs.NewWatch() }

// How soon after a look the next write to the same log is of interest: sooner, the sooner
// its limit can be reached at the rate at which it has grown.
const (
	soonestLook  = 20 * time.Millisecond
	latestLook   = 100 * time.Millisecond
	startsSettle = 200 * time.Millisecond
)

// rotation keeps the logs of running containers from growing without end. A write wakes
// it, and then for a while no other one of the same log does, so that a flood is limited
// as it is written, and a log that grows slowly costs next to nothing. A look at all of
// them now and then finds what no event told, and, once, puts in order what a rotation has
// left of the log of a container that has ended: nobody comes back to it.
type rotation struct {
	k      *Kubelet
	limits logs.Limits
	every  time.Duration // a look at all of them
	watch  logWatch
	queue  workqueue.TypedInterface[string] // of paths: never two are at work on one

	mu    sync.Mutex
	known map[string]containerLog // by path
	seen  map[string]growth       // by path, of those that are known
}

// growth is how a log stood at the last look, and when it was last rotated.
type growth struct {
	size        int64
	at, rotated time.Time
}

// rotateLogs runs the rotation. containerLogMaxWorkers are at work at the same time,
// never two on one log.
func (k *Kubelet) rotateLogs(ctx context.Context) error {
	size, err := resource.ParseQuantity(k.cfg.ContainerLogMaxSize)
	if err != nil {
		return err
	}
	r := &rotation{
		k: k, limits: logs.Limits{MaxSize: size.Value(), MaxFiles: int(ptr.Deref(k.cfg.ContainerLogMaxFiles, 5))},
		every: k.cfg.ContainerLogMonitorInterval.Duration,
		queue: workqueue.NewTyped[string](), known: map[string]containerLog{}, seen: map[string]growth{},
	}
	if r.watch, err = k.watchLogs(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.watch.Run(ctx, r.written) })
	for range ptr.Deref(k.cfg.ContainerLogMaxWorkers, 1) {
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

// lookAtAll queues every log now and then, and new ones when containers are seen
// to run, as all are at the kubelet's start.
func (r *rotation) lookAtAll(ctx context.Context) {
	defer r.queue.ShutDown()
	due := time.NewTimer(r.every)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.k.started:
			sleep(ctx, startsSettle) // they come in batches
			r.queueAll(false)
		case <-due.C:
			r.queueAll(true)
			due.Reset(r.every)
		}
	}
}

// newLogs has the rotation look for logs that it does not know.
func (k *Kubelet) newLogs() {
	select {
	case k.started <- struct{}{}:
	default:
	}
}

func (r *rotation) queueAll(also bool) {
	now := map[string]containerLog{}
	for _, l := range r.k.containerLogs() {
		now[l.path] = l
	}
	r.mu.Lock()
	before := r.known
	r.known = now
	maps.DeleteFunc(r.seen, func(path string, _ growth) bool { return now[path].id == "" })
	r.mu.Unlock()
	for path, l := range now {
		if also && !l.ended || before[path] != l {
			r.queue.Add(path)
		}
	}
}

// written queues a log that was written to.
func (r *rotation) written(path string) {
	if _, ok := r.log(path); ok {
		r.queue.Add(path)
	}
}

func (r *rotation) log(path string) (containerLog, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.known[path]
	return l, ok
}

func (r *rotation) work(ctx context.Context) {
	for {
		path, down := r.queue.Get()
		if down {
			return
		}
		l, ok := r.log(path)
		switch {
		case ctx.Err() != nil || !ok: // the queue is emptied, and nothing more done
		case l.ended:
			if err := logs.Settle(path); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to put in order the log of container", "containerID", l.id, "path", path)
			}
		default:
			r.look(ctx, l)
		}
		r.queue.Done(path)
	}
}

// look rotates a log if it has grown too large, and has its next write told, but not too
// soon. Older files are compressed once the log has calmed down.
func (r *rotation) look(ctx context.Context, l containerLog) {
	log := klog.FromContext(ctx)
	pause := r.pause(l.path, time.Now())
	done, err := logs.Rotate(ctx, r.k.deps.Runtime, l.id, l.path, r.limits, time.Now())
	if err == nil && r.calm(l.path, done, time.Now()) {
		err = logs.Compress(l.path)
	}
	if err != nil && ctx.Err() == nil {
		log.Error(err, "Failed to rotate log for container", "containerID", l.id, "path", l.path)
	}
	time.AfterFunc(pause, func() {
		if ctx.Err() != nil {
			return
		}
		if err := r.watch.Next(l.path); err != nil {
			log.Error(err, "Writes to a log are not told; it is looked at now and then", "containerID", l.id)
		}
	})
}

// pause is how long the log will be left alone after this look: half of the time in which
// it reaches its limit.
func (r *rotation) pause(path string, now time.Time) time.Duration {
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
	grown, room := float64(size-before.size), float64(r.limits.MaxSize)
	if size < r.limits.MaxSize {
		room -= float64(size)
	}
	if !ok || grown <= 0 {
		return latestLook
	}
	due := room / grown * float64(now.Sub(before.at)) / 2
	return time.Duration(min(max(due, float64(soonestLook)), float64(latestLook)))
}

// calm notes whether a log was rotated, and tells whether that was long ago: to compress
// takes longer than a flood takes to fill the next file.
func (r *rotation) calm(path string, rotated bool, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.seen[path]
	if rotated {
		g.rotated = now
		r.seen[path] = g
	}
	return now.Sub(g.rotated) >= r.every
}

// containerLogs are those of containers that have started.
func (k *Kubelet) containerLogs() []containerLog {
	var out []containerLog
	for _, p := range k.table.List() {
		dir := podconfig.LogDir(k.cfg.PodLogsDir, p.Pod)
		for i := range p.Input.Containers {
			if c := &p.Input.Containers[i]; c.State == podplan.Running || c.State == podplan.Exited {
				out = append(out, containerLog{c.ID, filepath.Join(dir, podconfig.LogPath(c.Name, c.Attempt)), c.State == podplan.Exited})
			}
		}
	}
	return out
}
