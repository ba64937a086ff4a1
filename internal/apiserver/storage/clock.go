package storage

import (
	"time"

	"k8s.io/utils/clock"
)

// inStep is the watch caches' clock: their timers of a second and more fire at full seconds. Each of
// the fifty caches looks once a second whether a watch is due for a bookmark; together they wake an
// idle process once, instead of fifty times.
type inStep struct{ clock.RealClock }

func (c inStep) NewTimer(d time.Duration) clock.Timer {
	return stepTimer{c.RealClock.NewTimer(step(time.Now(), d))}
}

type stepTimer struct{ clock.Timer }

func (t stepTimer) Reset(d time.Duration) bool { return t.Timer.Reset(step(time.Now(), d)) }

// step shortens a wait so that it ends at a full second.
func step(now time.Time, d time.Duration) time.Duration {
	if d < time.Second {
		return d
	}
	return now.Add(d).Truncate(time.Second).Sub(now)
}
