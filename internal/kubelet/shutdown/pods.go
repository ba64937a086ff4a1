package shutdown

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// Events records that a shutdown begins, or is canceled.
type Events interface {
	Eventf(object runtime.Object, eventType, reason, format string, args ...any)
}

// Pods is the Node of a kubelet.
type Pods struct {
	Table *podworker.Table
	// GoingDown keeps new pods out and makes the node NotReady; Changed is called when it changed.
	GoingDown *atomic.Bool
	Changed   func()
	Events    Events
	// Ref is the object of the events.
	Ref func() *v1.ObjectReference
}

// Active returns the pods that have to be ended.
func (p *Pods) Active() []*v1.Pod {
	var out []*v1.Pod
	for _, s := range p.Table.List() {
		if !s.Absent && s.Plan.Life != podplan.PodTerminated {
			out = append(out, s.Pod)
		}
	}
	return out
}

// End fails a pod. Nothing recreates a static pod except a canceled shutdown or the next start of
// the kubelet.
func (p *Pods) End(pod *v1.Pod, grace int64) {
	p.Table.Evict(pod.UID, podplan.Ending{
		Since: time.Now(), Reason: ReasonTerminated, Message: MessageTerminated, Grace: &grace,
		Disruption: v1.PodReasonTerminationByKubelet,
	})
}

// Ended waits until nothing of a pod runs any more.
func (p *Pods) Ended(ctx context.Context, pod *v1.Pod) {
	p.Table.Await(ctx, pod.UID, func(s *podworker.Snapshot) bool { return s.Plan.Life == podplan.PodTerminated })
}

// ShuttingDown keeps new pods out and makes the node NotReady, or takes both back.
func (p *Pods) ShuttingDown(ctx context.Context, down bool) {
	p.GoingDown.Store(down)
	what := "cancellation"
	if down {
		what = "event"
	}
	p.Events.Eventf(p.Ref(), v1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown %s", what)
	p.Changed()
	if !down {
		p.restart(ctx)
	}
}

// restart starts the static pods again that a shutdown has ended.
func (p *Pods) restart(ctx context.Context) {
	for _, s := range p.Table.List() {
		if e := s.Plan.Record.Ending; s.Static && !s.Absent && e != nil && e.Reason == ReasonTerminated {
			p.Table.Remove(s.Pod.UID, nil)
			p.Table.Await(ctx, s.Pod.UID, func(now *podworker.Snapshot) bool { return now.Absent })
			p.Table.Set(s.Pod, true)
		}
	}
}
