package podworker

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/podplan"
)

// Table holds the workers of all pods on the node. The sources and the kubelet
// write desired state into it; all others read snapshots.
type Table struct {
	deps      Deps
	admission Admission

	mu      sync.Mutex
	workers map[types.UID]*Worker
	// forgotten UIDs whose removal the source has not told yet.
	forgotten map[types.UID]bool
	// waiting has the predecessor of the same name of each static pod that waits for it.
	waiting map[types.UID]types.UID
	synced  bool
	// spawn runs a worker under Run's context; nil unless Run runs.
	spawn   func(func(context.Context))
	running sync.WaitGroup
}

// NewTable returns an empty table.
func NewTable(deps Deps) *Table {
	t := &Table{
		deps: deps, workers: map[types.UID]*Worker{}, forgotten: map[types.UID]bool{},
		waiting: map[types.UID]types.UID{},
	}
	t.admission = deps.Admission(t)
	return t
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
	return newWorker(uid, t.deps, t.admission)
}

// workerLocked returns a pod's worker: the newcomer where there is none, and another one where
// there was one a moment ago.
func (t *Table) workerLocked(uid types.UID, newcomer *Worker) (w *Worker, known bool) {
	if w, known = t.workers[uid]; known {
		return w, true
	}
	if newcomer == nil {
		newcomer = newWorker(uid, t.deps, t.admission)
	}
	t.workers[uid] = newcomer
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
	for uid, o := range t.workers {
		if uid != pod.UID && o.precedes(pod) {
			t.waiting[pod.UID] = uid
		}
	}
}

// releaseLocked starts those that waited for a pod.
func (t *Table) releaseLocked(uid types.UID) {
	for next, before := range t.waiting {
		if before == uid {
			delete(t.waiting, next)
			if w := t.workers[next]; w != nil {
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
	if w, ok := t.workers[uid]; ok {
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
	for _, w := range t.workers {
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

// Wake makes the pod's worker look again; an unknown UID is no error.
func (t *Table) Wake(uid types.UID) {
	if w := t.get(uid); w != nil {
		w.Wake()
	}
}

// Relist makes the worker ask the runtime anew which sandboxes the pod has.
func (t *Table) Relist(uid types.UID) {
	if w := t.get(uid); w != nil {
		w.relist()
	}
}

// ObjectChanged tells that an object which the pod refers to changed.
func (t *Table) ObjectChanged(uid types.UID) {
	if w := t.get(uid); w != nil {
		w.objectChanged()
	}
}

// WakeAll wakes every worker.
func (t *Table) WakeAll() {
	for _, w := range t.all() {
		w.Wake()
	}
}

// Reclaim removes the containers that a pod which has ended left, with all that they wrote.
func (t *Table) Reclaim(uid types.UID) {
	if w := t.get(uid); w != nil {
		w.giveBack()
	}
}

// Evict ends a pod for a reason of the node's, or sooner than it was about to end.
func (t *Table) Evict(uid types.UID, e podplan.Ending) {
	if w := t.get(uid); w != nil {
		w.evict(e)
	}
}

// Get returns the snapshot of a pod.
func (t *Table) Get(uid types.UID) (Snapshot, bool) {
	if w := t.get(uid); w != nil {
		return w.Snapshot(), true
	}
	return Snapshot{}, false
}

// Leaving tells whether a pod ends or is about to, also when its worker has not looked yet:
// no source has it any more, it is deleted, its phase at the API server is final, or the
// node ends it.
func (t *Table) Leaving(uid types.UID) bool {
	w := t.get(uid)
	if w == nil {
		return false
	}
	s := w.Snapshot()
	return s.Plan.Record.Ending != nil || w.leaving()
}

// ByName returns the snapshot of the pod of that name which is not gone; of two, as
// after a forced deletion, the one that a source wants.
func (t *Table) ByName(namespace, name string) (Snapshot, bool) {
	var found Snapshot
	ok := false
	for _, w := range t.all() {
		s := w.Snapshot()
		if s.Pod != nil && s.Pod.Namespace == namespace && s.Pod.Name == name && (!ok || found.Absent) {
			found, ok = s, true
		}
	}
	return found, ok
}

// List returns the snapshots of all pods.
func (t *Table) List() []Snapshot {
	all := t.all()
	out := make([]Snapshot, 0, len(all))
	for _, w := range all {
		if s := w.Snapshot(); s.Pod != nil {
			out = append(out, s)
		}
	}
	return out
}

// Run runs the workers until the context ends, and returns when all are gone.
// Containers go on running.
func (t *Table) Run(ctx context.Context) error {
	t.mu.Lock()
	t.spawn = func(f func(context.Context)) { t.running.Go(func() { f(ctx) }) }
	for _, w := range t.workers {
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
	delete(t.workers, w.uid)
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

func (t *Table) get(uid types.UID) *Worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.workers[uid]
}

func (t *Table) all() []*Worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*Worker, 0, len(t.workers))
	for _, w := range t.workers {
		out = append(out, w)
	}
	return out
}
