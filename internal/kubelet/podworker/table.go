package podworker

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Table gives each pod of the node its worker. The sources and the kubelet write desired
// state into it; all others know only its Pods.
type Table struct {
	*Pods

	deps Deps

	// mu is held for whatever depends on which workers there are; Pods' own lock is taken
	// under it.
	mu sync.Mutex
	// forgotten UIDs whose removal the source has not told yet.
	forgotten map[types.UID]bool
	// waiting has the predecessor of the same name of each static pod that waits for it.
	waiting map[types.UID]types.UID
	synced  bool
	// spawn runs a worker under Run's context; nil unless Run runs.
	spawn   func(func(context.Context))
	running sync.WaitGroup
}

// NewTable returns a table that gives workers to pods, which are empty.
func NewTable(pods *Pods, deps Deps) *Table {
	return &Table{Pods: pods, deps: deps, forgotten: map[types.UID]bool{}, waiting: map[types.UID]types.UID{}}
}

// Set tells what a source wants of a pod. The newest call wins.
func (t *Table) Set(pod *v1.Pod, static bool) {
	newcomer := t.newcomer(pod.UID)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.forgotten[pod.UID] {
		t.setLocked(pod, static, newcomer)
	}
}

// newcomer returns a worker for a pod that has none yet, else nil. Its record is read now, not
// under a lock: others ask for it before the worker looks.
func (t *Table) newcomer(uid types.UID) *Worker {
	if t.get(uid) != nil {
		return nil
	}
	return newWorker(uid, t.deps)
}

// workerLocked returns a pod's worker: the newcomer where there is none, and another one where
// there was one a moment ago.
func (t *Table) workerLocked(uid types.UID, newcomer *Worker) (w *Worker, known bool) {
	if w = t.get(uid); w != nil {
		return w, true
	}
	if newcomer == nil {
		newcomer = newWorker(uid, t.deps)
	}
	t.add(newcomer)
	return newcomer, false
}

func (t *Table) setLocked(pod *v1.Pod, static bool, newcomer *Worker) {
	w, known := t.workerLocked(pod.UID, newcomer)
	if !known && static {
		t.holdLocked(pod)
	}
	w.set(pod, static)
	t.startLocked(w)
	if !static {
		t.releaseLocked(pod.UID) // an orphan turned out to be nobody's predecessor
	}
}

// holdLocked lets a static pod wait until the one of the same name, whose manifest was
// replaced, is gone; so may an orphan be, of which the last kubelet knew.
func (t *Table) holdLocked(pod *v1.Pod) {
	for _, o := range t.all() {
		if o.uid != pod.UID && o.precedes(pod) {
			t.waiting[pod.UID] = o.uid
		}
	}
}

// releaseLocked starts those that waited for a pod.
func (t *Table) releaseLocked(uid types.UID) {
	for next, before := range t.waiting {
		if before == uid {
			delete(t.waiting, next)
			if w := t.get(next); w != nil {
				t.startLocked(w)
			}
		}
	}
}

// Remove tells that no source has the pod any more; last, if not nil, is how it was
// last seen, with the grace period that its deletion asked for.
func (t *Table) Remove(uid types.UID, last *v1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.forgotten, uid)
	if w := t.get(uid); w != nil {
		w.setAbsent(last)
		t.startLocked(w)
	}
}

// Adopt makes sure that a pod which only the runtime, a record or the disk knows has a
// worker. It begins once the sources have synced: until then one may want the pod.
func (t *Table) Adopt(orphan *v1.Pod) {
	newcomer := t.newcomer(orphan.UID)
	t.mu.Lock()
	defer t.mu.Unlock()
	w, known := t.workerLocked(orphan.UID, newcomer)
	if known {
		return
	}
	w.adopt(orphan)
	if t.synced {
		w.sourcesSynced()
	}
	t.startLocked(w)
}

// Synced tells that every source has delivered all it has: what no source wants is
// absent from now on.
func (t *Table) Synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.synced = true
	for _, w := range t.all() {
		w.sourcesSynced()
		t.startLocked(w)
	}
}

// IsSynced tells whether Synced was called.
func (t *Table) IsSynced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.synced
}

// Run runs the workers until the context ends, and returns when all are gone.
// Containers go on running.
func (t *Table) Run(ctx context.Context) error {
	t.mu.Lock()
	t.spawn = func(f func(context.Context)) { t.running.Go(func() { f(ctx) }) }
	for _, w := range t.all() {
		t.startLocked(w)
	}
	t.mu.Unlock()
	<-ctx.Done()
	t.mu.Lock()
	t.spawn = nil
	t.mu.Unlock()
	t.running.Wait()
	return nil
}

// startLocked starts a worker that is not running yet, once there is something it
// may do: its pod is wanted, or is known to be absent.
func (t *Table) startLocked(w *Worker) {
	if t.spawn == nil || w.started || !w.decided() {
		return
	}
	if _, waits := t.waiting[w.uid]; waits {
		return
	}
	w.started = true
	t.spawn(func(ctx context.Context) {
		w.run(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("podUID", w.uid)))
		t.ended(w)
	})
}

// ended takes a worker out whose pod is gone, and lets a static successor begin.
func (t *Table) ended(w *Worker) {
	s := w.Snapshot()
	if !s.Plan.Done {
		return
	}
	t.mu.Lock()
	t.drop(w)
	defer w.put(&s)             // those who wait for a newer one find none
	if !s.Static && !w.gone() { // the source may have told since the worker last looked
		t.forgotten[w.uid] = true
	}
	t.releaseLocked(w.uid)
	if pod := w.wanted(); pod != nil && s.Static {
		t.setLocked(pod, true, nil) // its manifest was put back in the meantime
	}
	t.mu.Unlock()
}
