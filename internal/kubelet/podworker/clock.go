package podworker

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/podplan"
)

// clockSet is by how much the clock may move against the time that has passed before what is remembered moves with it.
const clockSet = time.Second

// keptEnds is how many ends in the future are remembered.
const keptEnds = 100

// followClock moves what the worker remembers, if the system's clock was set: a grace period or a back-off that has begun lasts as
// long as it would have, and no longer.
func (w *Worker) followClock(ctx context.Context) {
	now := time.Now()
	by := now.Round(0).Sub(w.clock.Round(0)) - now.Sub(w.clock)
	if by.Abs() < clockSet {
		return
	}
	klog.FromContext(ctx).V(2).Info("The clock was set", "by", by)
	w.clock = now
	w.moveBy(by)
}

// moveBy moves the times from which something is counted, and those until which something lasts.
func (w *Worker) moveBy(by time.Duration) {
	moved := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return t.Round(0).Add(by)
	}
	w.moveRecord(moved)
	for key, f := range w.failures {
		f.At, f.LookedAt = moved(f.At), moved(f.LookedAt)
		w.failures[key] = f
	}
	for _, f := range w.flights {
		f.Since, f.Op.Deadline = moved(f.Since), moved(f.Op.Deadline)
	}
	for id, op := range w.preStops {
		op.Deadline = moved(op.Deadline)
		w.preStops[id] = op
	}
}

// moveRecord moves those times of the record from which something is counted. Snapshots share what it points to.
func (w *Worker) moveRecord(moved func(time.Time) time.Time) {
	if e := w.record.Ending; e != nil {
		then := *e
		then.Since = moved(e.Since)
		w.record.Ending, w.unwritten = &then, true
	}
	if r := w.record.RestartAll; r != nil {
		then := *r
		then.Since = moved(r.Since)
		w.record.RestartAll, w.unwritten = &then, true
	}
}

// notAhead moves times of a record that are still to come to now: the clock was set back while no kubelet ran.
func (w *Worker) notAhead(now time.Time) {
	ahead := func(t time.Time) bool { return t.After(now.Add(clockSet)) }
	if e, r := w.record.Ending, w.record.RestartAll; (e == nil || !ahead(e.Since)) && (r == nil || !ahead(r.Since)) {
		return
	}
	w.moveRecord(func(t time.Time) time.Time {
		if ahead(t) {
			return now.Round(0)
		}
		return t
	})
}

// waitsFrom returns from when the back-off of an instance counts that has ended at a time which is still to come by the clock, as it
// was set back since: from when that was first seen. It is zero for others.
func (w *Worker) waitsFrom(c *podplan.Container, now time.Time) time.Time {
	if !c.Finished.After(now.Add(clockSet)) {
		return time.Time{}
	}
	if len(w.ends) >= keptEnds {
		clear(w.ends) // most are of instances that are long gone
	}
	at, seen := w.ends[c.ID]
	if !seen || at.After(now.Add(clockSet)) {
		at = now.Round(0)
		w.ends[c.ID] = at
	}
	return at
}
