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

// writers is how many updates are written at once.
const writers = 16

// statusWriter writes updates in the background, those of one pod one after another. Only the latest of those
// that wait is written.
type statusWriter struct {
	write func(context.Context, *statusUpdate)
	slots chan struct{}

	mu      sync.Mutex
	waiting map[types.UID]*statusUpdate // nil: one is being written, and none waits
	running sync.WaitGroup
}

func newStatusWriter(write func(context.Context, *statusUpdate)) *statusWriter {
	return &statusWriter{write: write, slots: make(chan struct{}, writers), waiting: map[types.UID]*statusUpdate{}}
}

func (w *statusWriter) put(ctx context.Context, u *statusUpdate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid := u.pod.UID
	last, busy := w.waiting[uid]
	if last != nil && u.nominated == nil {
		u.nominated = last.nominated
	}
	w.waiting[uid] = u
	if !busy {
		w.running.Go(func() { w.work(ctx, uid) })
	}
}

func (w *statusWriter) work(ctx context.Context, uid types.UID) {
	for {
		w.slots <- struct{}{}
		u := w.take(uid)
		if u != nil {
			w.write(ctx, u)
		}
		<-w.slots
		if u == nil {
			return
		}
	}
}

// take returns the pod's next update. If there is none, the pod is forgotten.
func (w *statusWriter) take(uid types.UID) *statusUpdate {
	w.mu.Lock()
	defer w.mu.Unlock()
	u := w.waiting[uid]
	if u == nil {
		delete(w.waiting, uid)
	} else {
		w.waiting[uid] = nil
	}
	return u
}

// wait returns when everything is written.
func (w *statusWriter) wait() { w.running.Wait() }
