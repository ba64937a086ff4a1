package podworker

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
)

// Pods are the pods that have a worker: others read their snapshots, and wake them. It is
// made before all else of a node, for who wakes pods and who works for them know it alike.
// Table is the one who adds to it.
type Pods struct {
	mu      sync.Mutex
	workers map[types.UID]*Worker
}

// NewPods returns an empty set.
func NewPods() *Pods { return &Pods{workers: map[types.UID]*Worker{}} }

// Wake makes the pod's worker look again; an unknown UID is no error.
func (p *Pods) Wake(uid types.UID) {
	if w := p.get(uid); w != nil {
		w.Wake()
	}
}

// Relist makes the worker ask the runtime anew which sandboxes the pod has.
func (p *Pods) Relist(uid types.UID) {
	if w := p.get(uid); w != nil {
		w.relist()
	}
}

// ObjectChanged tells that an object which the pod refers to changed.
func (p *Pods) ObjectChanged(uid types.UID) {
	if w := p.get(uid); w != nil {
		w.objectChanged()
	}
}

// WakeAll wakes every worker.
func (p *Pods) WakeAll() {
	for _, w := range p.all() {
		w.Wake()
	}
}

// Reclaim removes the containers that a pod which has ended left, with all that they wrote.
func (p *Pods) Reclaim(uid types.UID) {
	if w := p.get(uid); w != nil {
		w.giveBack()
	}
}

// Evict ends a pod for a reason of the node's, or sooner than it was about to end.
func (p *Pods) Evict(uid types.UID, e podplan.Ending) {
	if w := p.get(uid); w != nil {
		w.evict(e)
	}
}

// Get returns the snapshot of a pod.
func (p *Pods) Get(uid types.UID) (Snapshot, bool) {
	if w := p.get(uid); w != nil {
		return w.Snapshot(), true
	}
	return Snapshot{}, false
}

// Leaving tells whether a pod ends or is about to, also when its worker has not looked yet:
// no source has it any more, it is deleted, its phase at the API server is final, or the
// node ends it.
func (p *Pods) Leaving(uid types.UID) bool {
	w := p.get(uid)
	if w == nil {
		return false
	}
	s := w.Snapshot()
	return s.Plan.Record.Ending != nil || w.leaving()
}

// ByName returns the snapshot of the pod of that name which is not gone; of two, as
// after a forced deletion, the one that a source wants.
func (p *Pods) ByName(namespace, name string) (Snapshot, bool) {
	var found Snapshot
	ok := false
	for _, w := range p.all() {
		s := w.Snapshot()
		if s.Pod != nil && s.Pod.Namespace == namespace && s.Pod.Name == name && (!ok || found.Absent) {
			found, ok = s, true
		}
	}
	return found, ok
}

// List returns the snapshots of all pods.
func (p *Pods) List() []Snapshot {
	all := p.all()
	out := make([]Snapshot, 0, len(all))
	for _, w := range all {
		if s := w.Snapshot(); s.Pod != nil {
			out = append(out, s)
		}
	}
	return out
}

// Await waits until a pod is as wanted, or gone, or the context ends.
func (p *Pods) Await(ctx context.Context, uid types.UID, ok func(*Snapshot) bool) {
	for {
		s, known := p.Get(uid)
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

func (p *Pods) get(uid types.UID) *Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers[uid]
}

func (p *Pods) all() []*Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*Worker, 0, len(p.workers))
	for _, w := range p.workers {
		out = append(out, w)
	}
	return out
}

func (p *Pods) add(w *Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers[w.uid] = w
}

func (p *Pods) drop(w *Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.workers, w.uid)
}
