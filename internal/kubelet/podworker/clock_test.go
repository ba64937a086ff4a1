package podworker

import (
	"testing"
	"time"

	"wherry.dev/internal/kubelet/podplan"
)

// A clock that was set back by ten hours made a pod with a preStop hook end ten hours later, and one that was set forward killed it
// at once.
func TestWaitsLastAsLongWhenTheClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-10 * time.Hour, 10 * time.Hour} {
		began := time.Now()
		stop, pull := podplan.Op{Kind: podplan.StopContainer}.Key(), podplan.Op{Kind: podplan.PullImage}.Key()
		shown := &podplan.Ending{Since: began}
		w := &Worker{
			record:   podplan.Record{StartTime: began, Ending: shown, RestartAll: &podplan.RestartAll{Since: began}},
			failures: map[podplan.Key]podplan.Failure{pull: {At: began}},
			flights:  map[podplan.Key]*flight{stop: {Flight: podplan.Flight{Since: began, Op: podplan.Op{Deadline: began}}}},
			preStops: map[string]podplan.Op{"c": {Deadline: began}},
		}
		w.moveBy(by)
		want := began.Round(0).Add(by)
		for name, got := range map[string]time.Time{
			"the end of the pod": w.record.Ending.Since, "the restart of all": w.record.RestartAll.Since, "a failure": w.failures[pull].At,
			"what is under way": w.flights[stop].Since, "its deadline": w.flights[stop].Op.Deadline, "that of a hook": w.preStops["c"].Deadline,
		} {
			if !got.Equal(want) {
				t.Errorf("set by %s: %s counts from %s, not %s", by, name, got, want)
			}
		}
		if !w.failures[pull].LookedAt.IsZero() || !w.record.StartTime.Equal(began) || !shown.Since.Equal(began) {
			t.Errorf("what should stay has moved: %+v, %+v", w.record, shown)
		}
		if !w.unwritten {
			t.Error("the next kubelet would not know")
		}
	}
}

// A clock that was set back while no kubelet ran, on a machine that lost its battery, say.
func TestRecordsOfTheFutureCountFromNow(t *testing.T) {
	now := time.Now()
	for by, moves := range map[time.Duration]bool{-time.Hour: false, time.Millisecond: false, time.Hour: true} {
		w := &Worker{record: podplan.Record{Ending: &podplan.Ending{Since: now.Add(by)}}}
		w.notAhead(now)
		if got := w.record.Ending.Since; got.Equal(now) != moves || w.unwritten != moves {
			t.Errorf("%s: %s", by, got)
		}
	}
}

// The back-off of a container that ended by the clock as it was counts from when that was first seen.
func TestAnEndInTheFutureIsBackedOffFromNow(t *testing.T) {
	now := time.Now()
	w := &Worker{ends: map[string]time.Time{}}
	ended := &podplan.Container{ID: "c", Finished: now.Add(time.Hour)}
	for _, c := range []struct {
		c    *podplan.Container
		now  time.Time
		want time.Time
	}{
		{&podplan.Container{ID: "earlier", Finished: now.Add(-time.Hour)}, now, time.Time{}},
		{ended, now, now},
		{ended, now.Add(time.Minute), now},
		{ended, now.Add(-2 * time.Hour), now.Add(-2 * time.Hour)}, // it was set back again
		{ended, now.Add(2 * time.Hour), time.Time{}},
	} {
		if got := w.waitsFrom(c.c, c.now); !got.Equal(c.want) {
			t.Errorf("%s at %s: from %s, not %s", c.c.ID, c.now, got, c.want)
		}
	}
}

// The time that passes is no reason.
func TestAClockThatGoesMovesNothing(t *testing.T) {
	began := time.Now()
	w := &Worker{clock: began.Add(-time.Hour), record: podplan.Record{Ending: &podplan.Ending{Since: began}}}
	w.followClock(t.Context())
	if !w.record.Ending.Since.Equal(began) || w.unwritten {
		t.Errorf("it moved to %s", w.record.Ending.Since)
	}
}
