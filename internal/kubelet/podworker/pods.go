package podworker

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
)

// Pods is the set of pods that have a worker: others read their snapshots, and wake them. It is
// created before everything else of a node, because both those who wake pods and those who work for
// them need it. Only Table adds to it.
type Pods struct {
	mu      sync.Mutex
	workers map[types.UID]*Worker

	watchers atomic.Pointer[[]*Changes] // nil or empty most of the time; replaced under mu
}

// NewPods returns an empty set.
func NewPods() *Pods { return &Pods{workers: map[types.UID]*Worker{}} }

// Wake makes the pod's worker look again; it ignores an unknown UID.
func (p *Pods) Wake(uid types.UID) {
	if w := p.get(uid); w != nil {
		w.Wake()
	}
}

// Relist makes the worker ask the runtime again which sandboxes the pod has.
func (p *Pods) Relist(uid types.UID) {
	if w := p.get(uid); w != nil {
		w.relist()
	}
}

// ObjectChanged says that an object that the pod refers to has changed.
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

// Reclaim removes the containers that a pod that has ended left, with everything that they wrote.
func (p *Pods) Reclaim(uid types.UID) {
	if w := p.get(uid); w != nil {
		w.giveBack()
	}
}

// Evict ends a pod for a reason of the node's, or earlier than it would have ended.
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

// Leaving reports whether a pod is ending or is about to, even if its worker has not looked yet: no
// source has it any more, it is deleted, its phase at the API server is final, or the node is
// ending it.
func (p *Pods) Leaving(uid types.UID) bool {
	w := p.get(uid)
	if w == nil {
		return false
	}
	s := w.Snapshot()
	return s.Plan.Record.Ending != nil || w.leaving()
}

// ByName returns the snapshot of the pod of that name that is not gone. If there are two, as after
// a forced deletion, it is the one that a source wants.
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

// List returns the snapshots of all pods. They are not copied: nodes have many pods that have long
// ended, and this is called for each one that comes or goes.
func (p *Pods) List() []*Snapshot {
	all := p.all()
	out := make([]*Snapshot, 0, len(all))
	for _, w := range all {
		if s := w.snap.Load(); s.Pod != nil {
			out = append(out, s)
		}
	}
	return out
}

// Await waits until ok accepts the pod, the pod is gone, or the context ends.
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
	w.changed = func() { p.changed(w.uid) }
	p.mu.Lock()
	p.workers[w.uid] = w
	p.mu.Unlock()
	p.changed(w.uid)
}

func (p *Pods) drop(w *Worker) {
	p.mu.Lock()
	delete(p.workers, w.uid)
	p.mu.Unlock()
	p.changed(w.uid)
}
