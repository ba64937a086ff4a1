package podworker

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
)

// Table gives each pod of the node its worker. The sources and the kubelet write desired state into
// it; everything else sees only its Pods.
type Table struct {
	*Pods

	deps Deps

	// mu is held for whatever depends on which workers exist; the lock of Pods is taken under it.
	mu sync.Mutex
	// forgotten has the UIDs whose removal the source has not reported yet.
	forgotten map[types.UID]bool
	// waiting has, for each static pod that waits, the pod of the same name that it waits for.
	waiting map[types.UID]types.UID
	synced  bool
	// spawn runs a worker under Run's context; nil unless Run is running.
	spawn   func(func(context.Context))
	running sync.WaitGroup
}

// NewTable returns a table that adds the workers to pods, which must be empty.
func NewTable(pods *Pods, deps Deps) *Table {
	return &Table{Pods: pods, deps: deps, forgotten: map[types.UID]bool{}, waiting: map[types.UID]types.UID{}}
}

// Set sets what a source wants of a pod. The newest call wins.
func (t *Table) Set(pod *v1.Pod, static bool) {
	newcomer := t.newcomer(pod.UID)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.forgotten[pod.UID] {
		t.setLocked(pod, static, newcomer)
	}
}

// newcomer returns a worker for a pod that has none yet, otherwise nil. Its record is read here,
// not under a lock: others ask for it before the worker first looks.
func (t *Table) newcomer(uid types.UID) *Worker {
	if t.get(uid) != nil {
		return nil
	}
	return newWorker(uid, t.deps)
}

// workerLocked returns a pod's worker. If there is none it adds the newcomer, or creates one if
// there was a worker a moment ago.
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
		t.releaseLocked(pod.UID) // an orphan turned out to be no predecessor
	}
}

// holdLocked makes a static pod wait until the one of the same name, whose manifest was replaced,
// is gone. That one may be an orphan which the previous kubelet knew.
func (t *Table) holdLocked(pod *v1.Pod) {
	for _, o := range t.all() {
		if o.uid != pod.UID && o.precedes(pod) {
			t.waiting[pod.UID] = o.uid
		}
	}
}

// releaseLocked starts the workers that waited for a pod.
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

// Lingering returns the names of static pods that were removed and are not gone yet, even if they have been put back.
func (t *Table) Lingering() sets.Set[types.NamespacedName] {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := sets.New[types.NamespacedName]()
	for _, w := range t.all() {
		if w.lingers() {
			pod := w.Snapshot().Pod
			out.Insert(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	return out
}

// Remove says that no source has the pod any more. last, if not nil, is the pod as it was last
// seen, with the grace period of its deletion.
func (t *Table) Remove(uid types.UID, last *v1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.forgotten, uid)
	if w := t.get(uid); w != nil {
		w.setAbsent(last)
		t.startLocked(w)
	}
}

// Adopt makes sure that a pod known only to the runtime, a record or the disk has a worker. The
// worker starts only once the sources have synced: until then one of them may want the pod.
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

// Synced says that every source has delivered everything it has: from now on, what no source wants
// is absent.
func (t *Table) Synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.synced = true
	for _, w := range t.all() {
		w.sourcesSynced()
		t.startLocked(w)
	}
}

// IsSynced reports whether Synced was called.
func (t *Table) IsSynced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.synced
}

// Run runs the workers until the context ends, and returns when all are gone. Containers keep
// running.
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

// startLocked starts a worker that is not running yet, once there is something it may do: its pod
// is wanted, or is known to be absent.
func (t *Table) startLocked(w *Worker) {
	if t.spawn == nil || w.started || !w.decided() {
		return
	}
	if _, waits := t.waiting[w.uid]; waits {
		return
	}
	w.started = true
	t.spawn(func(ctx context.Context) {
		log := klog.FromContext(ctx).WithValues("pod", klog.KObj(w.Snapshot().Pod), "podUID", w.uid)
		w.run(klog.NewContext(ctx, log))
		t.ended(w)
	})
}

// ended removes a worker whose pod is gone, and lets a static successor start.
func (t *Table) ended(w *Worker) {
	s := w.Snapshot()
	if !s.Plan.Done {
		return
	}
	t.mu.Lock()
	lingered := s.Static || w.lingers()
	t.drop(w)
	defer w.put(&s)             // whoever waits for a newer one finds none
	if !s.Static && !w.gone() { // the source may have reported it since the worker last looked
		t.forgotten[w.uid] = true
	}
	t.releaseLocked(w.uid)
	if pod := w.wanted(); pod != nil && s.Static {
		next := newWorker(w.uid, t.deps) // its manifest was put back in the meantime
		next.record, next.recorded, next.unwritten = s.Input.Record.Again(pod, &s.Status), true, true
		t.setLocked(pod, true, next)
	}
	t.mu.Unlock()
	if lingered && t.deps.Left != nil {
		t.deps.Left()
	}
}
