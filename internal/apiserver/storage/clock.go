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

// progressPeriod is how often a cache asks etcd how far its watch is while a consistent read waits for that. The library
// asks every 100 ms, which nearly every read after the first one would wait.
const progressPeriod = 5 * time.Millisecond

// step shortens a wait so that it ends at a full second, and one of less than a second, which is that between two
// questions for progress, to progressPeriod.
func step(now time.Time, d time.Duration) time.Duration {
	if d < time.Second {
		return min(d, progressPeriod)
	}
	return now.Add(d).Truncate(time.Second).Sub(now)
}
