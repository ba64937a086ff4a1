package eviction

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// State is what has to be remembered about shortages between two looks. The zero value is that of a node
// that was never looked at. Times are compared with each other only, so that with the monotonic clock in
// them it does not matter when somebody sets the clock.
type State struct {
	since  map[Threshold]time.Time            // when each shortage began
	active []Threshold                        // those for which pods were to be evicted at the last look
	last   map[v1.NodeConditionType]time.Time // when each condition last had a cause
}

// Finding is what a look at the levels amounts to.
type Finding struct {
	// Due are the shortages for which something has to be done now, the first one first.
	Due []Shortage
	// Conditions of the node, in a fixed order.
	Conditions []v1.NodeConditionType
	// Next is how long it takes until that changes by itself; 0 if it does not.
	Next time.Duration
}

// Look brings the state up to date. A shortage begins when a threshold is crossed; once it is due it lasts
// until the minimum reclaim is there, too. Conditions outlast their causes for the transition period.
func (s *State) Look(list []Threshold, levels Levels, transition time.Duration, now time.Time) Finding {
	var f Finding
	since, active := map[Threshold]time.Time{}, []Threshold(nil)
	if s.last == nil {
		s.last = map[v1.NodeConditionType]time.Time{}
	}
	for _, t := range list {
		level, ok := levels[t.Signal]
		least := t.Least
		if slices.Contains(s.active, t) {
			least += t.Reclaim
		}
		if !ok || level.Free >= least {
			continue
		}
		began, lasts := s.since[t]
		if !lasts {
			began = now
		}
		since[t] = began
		s.last[signals[t.Signal].condition] = now
		if wait := t.Grace - now.Sub(began); wait > 0 {
			f.Next = sooner(f.Next, wait)
			continue
		}
		active = append(active, t)
		f.Due = append(f.Due, Shortage{Threshold: t, Free: level.Free})
	}
	s.since, s.active = since, active
	for _, c := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		at, ever := s.last[c]
		left := transition - now.Sub(at)
		if ever && (at.Equal(now) || left > 0) {
			f.Conditions = append(f.Conditions, c)
			f.Next = sooner(f.Next, max(left, time.Millisecond))
		}
	}
	return f
}

// sooner returns the shorter of two waits; 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}
