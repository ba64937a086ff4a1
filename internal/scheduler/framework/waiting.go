package framework

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// maxPermitWait limits how long a Permit plugin can hold a pod. Upstream has the same limit.
const maxPermitWait = 15 * time.Minute

// WaitingPods holds the pods that Permit plugins have told to wait, and those that are being bound
// and can still be stopped. All profiles share one.
type WaitingPods struct {
	mu      sync.Mutex
	waiting map[types.UID]*waitingPod
	binding map[types.UID]*bindingPod
}

// NewWaitingPods returns an empty set.
func NewWaitingPods() *WaitingPods {
	return &WaitingPods{waiting: map[types.UID]*waitingPod{}, binding: map[types.UID]*bindingPod{}}
}

// waitingPod is a pod that has a node and waits to be bound.
type waitingPod struct {
	pod    *v1.Pod
	result chan *fwk.Status // capacity 1: the first verdict counts

	mu      sync.Mutex
	pending map[string]*time.Timer // by plugin
}

var _ fwk.WaitingPod = (*waitingPod)(nil)

// add makes a pod wait for plugins, each for its own time at most.
func (w *WaitingPods) add(pod *v1.Pod, timeouts map[string]time.Duration) {
	wp := &waitingPod{pod: pod, result: make(chan *fwk.Status, 1), pending: map[string]*time.Timer{}}
	wp.mu.Lock()
	for plugin, d := range timeouts {
		d = min(d, maxPermitWait)
		wp.pending[plugin] = time.AfterFunc(d, func() {
			wp.Reject(plugin, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", d, plugin))
		})
	}
	wp.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting[pod.UID] = wp
}

// wait returns when every plugin has allowed the pod, one has rejected it, or ctx ends.
func (w *WaitingPods) wait(ctx context.Context, pod *v1.Pod) *fwk.Status {
	wp := w.get(pod.UID)
	if wp == nil {
		return nil
	}
	defer func() {
		w.mu.Lock()
		delete(w.waiting, pod.UID)
		w.mu.Unlock()
		wp.stop()
	}()
	select {
	case st := <-wp.result:
		return st
	case <-ctx.Done():
		select {
		case st := <-wp.result: // the rest of its gang may go on already
			return st
		default:
		}
		return fwk.AsStatus(fmt.Errorf("waiting on permit: %w", context.Cause(ctx)))
	}
}

func (w *WaitingPods) get(uid types.UID) *waitingPod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting[uid]
}

func (w *WaitingPods) all() []*waitingPod {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*waitingPod, 0, len(w.waiting))
	for _, wp := range w.waiting {
		out = append(out, wp)
	}
	return out
}

// Remove forgets a pod whose wait nobody has begun to attend.
func (w *WaitingPods) Remove(uid types.UID) {
	w.mu.Lock()
	wp := w.waiting[uid]
	delete(w.waiting, uid)
	w.mu.Unlock()
	if wp != nil {
		wp.stop()
	}
}

// Reject ends a pod's wait or stops its binding, if it is not too late: for pods that were deleted.
func (w *WaitingPods) Reject(uid types.UID, why string) bool {
	if wp := w.get(uid); wp != nil {
		return wp.Reject("", why)
	}
	w.mu.Lock()
	b := w.binding[uid]
	w.mu.Unlock()
	return b != nil && b.CancelPod(why)
}

func (wp *waitingPod) stop() {
	wp.mu.Lock()
	defer wp.mu.Unlock()
	for _, t := range wp.pending {
		t.Stop()
	}
}

func (wp *waitingPod) decide(st *fwk.Status) bool {
	wp.stop()
	select {
	case wp.result <- st:
		return true
	default:
		return false
	}
}

// GetPod returns the pod.
func (wp *waitingPod) GetPod() *v1.Pod { return wp.pod }

// GetPendingPlugins returns the plugins that have not allowed the pod yet.
func (wp *waitingPod) GetPendingPlugins() []string {
	wp.mu.Lock()
	defer wp.mu.Unlock()
	out := make([]string, 0, len(wp.pending))
	for name := range wp.pending {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Allow lets the pod go on as far as one plugin is concerned.
func (wp *waitingPod) Allow(plugin string) {
	wp.mu.Lock()
	if t, ok := wp.pending[plugin]; ok {
		t.Stop()
		delete(wp.pending, plugin)
	}
	left := len(wp.pending)
	wp.mu.Unlock()
	if left == 0 {
		wp.decide(nil)
	}
}

// Reject makes the pod unschedulable. It reports whether this was the verdict.
func (wp *waitingPod) Reject(plugin, msg string) bool {
	return wp.decide(fwk.NewStatus(fwk.Unschedulable, msg).WithPlugin(plugin))
}

// Preempt sends the pod back to the queue without calling it unschedulable.
func (wp *waitingPod) Preempt(plugin, msg string) bool {
	return wp.decide(fwk.AsStatus(errors.New(msg)).WithPlugin(plugin))
}

// bindingPod is a pod between Permit and its binding.
type bindingPod struct {
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	canceled bool
	done     bool
}

var _ fwk.PodInPreBind = (*bindingPod)(nil)

// CancelPod ends the context of the pod's binding cycle, unless it is marked as done.
func (b *bindingPod) CancelPod(reason string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return false
	}
	b.canceled = true
	b.cancel(errors.New(reason))
	return true
}

// MarkPrebound makes the binding final. It reports false if it was canceled before.
func (b *bindingPod) MarkPrebound() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.canceled {
		return false
	}
	b.done = true
	return true
}
