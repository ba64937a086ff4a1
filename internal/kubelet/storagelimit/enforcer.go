package storagelimit

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

const (
	// every is the shortest pause between two measurements of a pod: upstream's interval.
	every = 10 * time.Second
	// share is how many times longer than a measurement the pause after it is, so that measuring takes at
	// most a fiftieth of the time.
	share = 50
	// settleFor is how long pods may come and go before it is looked which of them have limits.
	settleFor = time.Second
	// grace is how long an evicted pod has, in seconds, as upstream.
	grace = 1
	// measureWithin bounds the measurement of one pod: a runtime that hangs keeps no other pod from being
	// measured.
	measureWithin = 30 * time.Second
)

// Pods are the node's pods. *podworker.Pods implements it.
type Pods interface {
	List() []*podworker.Snapshot
	Evict(uid types.UID, e podplan.Ending)
}

// Meter measures one pod.
type Meter interface {
	Storage(ctx context.Context, p *podworker.Snapshot) (Usage, error)
}

// Events records evictions.
type Events interface {
	Eventf(object runtime.Object, eventType, reason, format string, args ...any)
}

// Enforcer measures pods that have limits, and evicts those that exceed them.
type Enforcer struct {
	Pods   Pods
	Meter  Meter
	Events Events
	// Evicted is called for each eviction, with its signal.
	Evicted func(signal string)

	wake chan struct{}
	due  map[types.UID]time.Time // when each pod is measured next; only Run's goroutine uses it
}

// New returns an Enforcer. Nothing happens before Run.
func New(e Enforcer) *Enforcer {
	e.wake, e.due = make(chan struct{}, 1), map[types.UID]time.Time{}
	return &e
}

// Poke says that pods have come or gone.
func (e *Enforcer) Poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Run measures and evicts until the context ends. While no pod has limits it waits for one.
func (e *Enforcer) Run(ctx context.Context) error {
	e.Poke()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
			e.settle(ctx)
		case <-timer.C:
		}
		timer.Stop()
		if wait, ok := e.round(ctx); ok {
			timer.Reset(wait)
		}
	}
	return nil
}

// settle waits a moment: pods often come in numbers, and one that has just come is not due yet.
func (e *Enforcer) settle(ctx context.Context) {
	timer := time.NewTimer(settleFor)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	select {
	case <-e.wake:
	default:
	}
}

// round measures the pods that are due, and returns when the next one is; false if none will be.
func (e *Enforcer) round(ctx context.Context) (time.Duration, bool) {
	due := map[types.UID]time.Time{}
	for _, p := range e.Pods.List() {
		if !watched(p) || ctx.Err() != nil {
			continue
		}
		at, known := e.due[p.Pod.UID]
		if !known {
			at = time.Now().Add(every) // a pod that has just come has written nothing yet
		}
		if now := time.Now(); !now.Before(at) {
			e.check(ctx, p)
			took := time.Since(now)
			at = time.Now().Add(max(every, share*took))
		}
		due[p.Pod.UID] = at
	}
	e.due = due
	var first time.Time
	for _, at := range due {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return max(time.Until(first), time.Millisecond), len(due) > 0
}

// watched reports whether a pod has limits and may still exceed them. Critical pods are never evicted.
func watched(p *podworker.Snapshot) bool {
	return p.Plan.Life != podplan.PodTerminated && p.Plan.Record.Ending == nil && !p.Absent && !pods.IsCritical(p.Pod) && Limited(p.Pod)
}

func (e *Enforcer) check(ctx context.Context, p *podworker.Snapshot) {
	log := klog.FromContext(ctx)
	within, cancel := context.WithTimeout(ctx, measureWithin)
	defer cancel()
	used, err := e.Meter.Storage(within, p)
	if err != nil {
		if ctx.Err() == nil {
			log.Error(err, "Cannot measure what a pod with storage limits uses of the disk", "pod", klog.KObj(p.Pod), "podUID", p.Pod.UID)
		}
		return
	}
	signal, message, exceeds := Exceeds(p.Pod, used)
	if !exceeds {
		return
	}
	log.Info("Evicting pod", "pod", klog.KObj(p.Pod), "podUID", p.Pod.UID, "signal", signal, "reason", message)
	e.Evicted(signal)
	e.Events.Eventf(p.Pod, v1.EventTypeWarning, podplan.ReasonEvicted, "%s", message)
	e.Pods.Evict(p.Pod.UID, podplan.Ending{
		Since: time.Now().Round(0).UTC(), Reason: podplan.ReasonEvicted, Message: message, Grace: new(int64(grace)), Reclaim: true,
	})
}
