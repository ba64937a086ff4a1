package cronjob

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// manyMissed is from how many missed times on a user is warned: the clock may be wrong.
const manyMissed = 100

// errNever is what a schedule is called that no date ever fits, such as the 31st of February.
// Upstream says it in these words.
var errNever = errors.New("time difference between two schedules is less than 1 second")

// parse returns the schedule of a cron job, in its time zone. The parser panics on some ("TZ=0").
func parse(spec *batchv1.CronJobSpec) (s cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	text := spec.Schedule
	if spec.TimeZone != nil && !hasZone(text) {
		text = "TZ=" + *spec.TimeZone + " " + text
	}
	return cron.ParseStandard(text)
}

// hasZone reports whether a schedule names a time zone itself, as old ones may.
func hasZone(schedule string) bool { return strings.Contains(schedule, "TZ") }

// times are those of a schedule around now.
type times struct {
	latest time.Time // the last one after a start that has come; zero if there is none
	many   bool      // whether there were more than manyMissed
	next   time.Time // the first one that has not come
}

// timesOf returns the times of a schedule after start.
func timesOf(s cron.Schedule, start, now time.Time) (times, error) {
	if every, ok := s.(cron.ConstantDelaySchedule); ok {
		return timesEvery(every.Delay, start, now), nil
	}
	out := times{next: s.Next(start)}
	for range manyMissed {
		if out.next.IsZero() {
			return times{}, errNever
		}
		if out.next.After(now) {
			return out, nil
		}
		out.latest, out.next = out.next, s.Next(out.next)
	}
	if out.next.IsZero() {
		return times{}, errNever
	}
	if out.next.After(now) {
		return out, nil
	}
	return times{latest: latestOf(s, now), many: true, next: s.Next(now)}, nil
}

// timesEvery is timesOf for a schedule that counts from its start.
func timesEvery(delay time.Duration, start, now time.Time) times {
	start = start.Truncate(time.Second)
	n := max(0, now.Sub(start)/delay)
	out := times{next: start.Add((n + 1) * delay), many: n > manyMissed}
	if n > 0 {
		out.latest = start.Add(n * delay)
	}
	return out
}

// latestOf returns the last time of a schedule that is not after now, when there is one: it looks back
// twice as far each time, so that it need not go through years of minutes.
func latestOf(s cron.Schedule, now time.Time) time.Time {
	for back := time.Minute; ; back *= 2 {
		t := s.Next(now.Add(-back))
		if t.IsZero() || t.After(now) {
			continue
		}
		for {
			next := s.Next(t)
			if next.IsZero() || next.After(now) {
				return t
			}
			t = next
		}
	}
}

// Look is what a cron job's schedule means now.
type Look struct {
	// Latest is the last time that has come since the last one that was met, or the creation. Zero if
	// there is none.
	Latest time.Time
	// Missed: the latest time was not met, and is too long ago to be met now.
	Missed bool
	Next   time.Time
}

// LookAt returns what the schedule of a cron job means, or why it means nothing.
func LookAt(c *batchv1.CronJob, now time.Time) (Look, error) {
	if zone := c.Spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil {
			return Look{}, fmt.Errorf("invalid timeZone: %q: %w", *zone, err)
		}
	}
	s, err := parse(&c.Spec)
	if err != nil {
		return Look{}, err
	}
	p := plan{status: c.Status}
	t, err := timesOf(s, p.begin(facts{cron: c, now: now}), now)
	if err != nil {
		return Look{}, err
	}
	return Look{Latest: t.latest, Missed: tooLate(&c.Spec, t.latest, now), Next: t.next}, nil
}

// tooLate reports whether the deadline has passed for a time that has come.
func tooLate(spec *batchv1.CronJobSpec, latest, now time.Time) bool {
	limit := spec.StartingDeadlineSeconds
	return limit != nil && !latest.IsZero() && now.Sub(latest).Seconds() > float64(*limit)
}
