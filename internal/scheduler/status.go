package scheduler

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// statusUpdate is what is to be told about a failed attempt.
type statusUpdate struct {
	profile         *framework.Profile
	pod             *v1.Pod
	reason, message string
	nominated       *fwk.NominatingInfo // nil: as it is
}

// over returns the update that stands for both.
func (u *statusUpdate) over(last *statusUpdate) *statusUpdate {
	if u.nominated == nil {
		u.nominated = last.nominated
	}
	return u
}

// writers is how many updates are written at once.
const writers = 16

// update is what is written about an object.
type update[U any] interface {
	comparable
	over(last U) U
}

// statusWriter writes updates in the background, those of one object one after another. Of those that wait, only one
// is written, which stands for all of them.
type statusWriter[U update[U]] struct {
	write func(context.Context, U)
	slots chan struct{}

	mu      sync.Mutex
	waiting map[types.UID]U // the zero U: one is being written, and none waits
	running sync.WaitGroup
}

func newStatusWriter[U update[U]](write func(context.Context, U)) *statusWriter[U] {
	return &statusWriter[U]{write: write, slots: make(chan struct{}, writers), waiting: map[types.UID]U{}}
}

func (w *statusWriter[U]) put(ctx context.Context, uid types.UID, u U) {
	var none U
	w.mu.Lock()
	defer w.mu.Unlock()
	last, busy := w.waiting[uid]
	if last != none {
		u = u.over(last)
	}
	w.waiting[uid] = u
	if !busy {
		w.running.Go(func() { w.work(ctx, uid) })
	}
}

func (w *statusWriter[U]) work(ctx context.Context, uid types.UID) {
	for {
		w.slots <- struct{}{}
		u, ok := w.take(uid)
		if ok {
			w.write(ctx, u)
		}
		<-w.slots
		if !ok {
			return
		}
	}
}

// take returns the object's next update. If there is none, the object is forgotten.
func (w *statusWriter[U]) take(uid types.UID) (u U, ok bool) {
	var none U
	w.mu.Lock()
	defer w.mu.Unlock()
	if u = w.waiting[uid]; u == none {
		delete(w.waiting, uid)
		return u, false
	}
	w.waiting[uid] = none
	return u, true
}

// wait returns when everything is written.
func (w *statusWriter[U]) wait() { w.running.Wait() }
