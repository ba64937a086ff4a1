package cronjob

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		panic(err)
	}
	return t
}

var now = at("2026-03-10 12:00:30")

func newCron(schedule string, changes ...func(*batchv1.CronJob)) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c", UID: "cron", ResourceVersion: "1", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec: batchv1.CronJobSpec{
			Schedule: schedule, ConcurrencyPolicy: batchv1.AllowConcurrent, Suspend: new(false),
			SuccessfulJobsHistoryLimit: new(int32(3)), FailedJobsHistoryLimit: new(int32(1)),
			JobTemplate: batchv1.JobTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"n": "1"}}},
		},
	}
	for _, f := range changes {
		f(c)
	}
	return c
}

func created(text string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.CreationTimestamp = metav1.NewTime(at(text)) }
}

func last(text string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Status.LastScheduleTime = new(metav1.NewTime(at(text))) }
}

func zone(name string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.TimeZone = &name }
}

func within(seconds int64) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = &seconds }
}

func concurrency(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = p }
}

func active(names ...string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) {
		for _, n := range names {
			c.Status.Active = append(c.Status.Active, v1.ObjectReference{Namespace: "a", Name: n, UID: types.UID(n)})
		}
	}
}

func newJob(name string, changes ...func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name)}}
	for _, f := range changes {
		f(j)
	}
	return j
}

func ends(t batchv1.JobConditionType, when string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: t, Status: v1.ConditionTrue}}
		j.Status.StartTime, j.Status.CompletionTime = new(metav1.NewTime(at(when).Add(-time.Minute))), new(metav1.NewTime(at(when)))
	}
}

func ofTime(text string) *batchv1.Job {
	j := jobFor(newCron(""), at(text))
	j.UID = types.UID(j.Name)
	return j
}

func describe(p plan) string {
	var out []string
	for _, r := range p.replace {
		out = append(out, "replace "+r.Name)
	}
	for _, j := range p.remove {
		out = append(out, "remove "+j.Name)
	}
	if !p.start.IsZero() {
		out = append(out, "start "+p.start.UTC().Format("02 15:04:05"))
	}
	if !p.next.IsZero() {
		out = append(out, "next "+p.next.UTC().Format("02 15:04:05"))
	}
	for _, e := range p.events {
		out = append(out, e.reason)
	}
	return strings.Join(out, ", ")
}

func TestPlan(t *testing.T) {
	const minute = "* * * * *"
	suspend := func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) }
	for name, tt := range map[string]struct {
		cron   *batchv1.CronJob
		jobs   []*batchv1.Job
		gone   map[types.UID]bool
		since  time.Time
		plan   string
		active string // afterwards
		last   string
	}{
		"a new one waits":                 {cron: newCron(minute, created("2026-03-10 12:00:10")), plan: "next 10 12:01:00"},
		"its time has come":               {cron: newCron(minute, last("2026-03-10 11:59:00")), plan: "start 10 12:00:00, next 10 12:01:00"},
		"it was met":                      {cron: newCron(minute, last("2026-03-10 12:00:00")), plan: "next 10 12:01:00"},
		"several missed: only the latest": {cron: newCron("*/10 * * * *", last("2026-03-10 10:00:00")), plan: "start 10 12:00:00, next 10 12:10:00"},
		"a hundred missed":                {cron: newCron(minute, last("2026-03-10 10:20:00")), plan: "start 10 12:00:00, next 10 12:01:00"},
		"more than a hundred":             {cron: newCron(minute, last("2026-03-10 10:19:00")), plan: "start 10 12:00:00, next 10 12:01:00, TooManyMissedTimes"},
		"years":                           {cron: newCron("0 12 * * *", last("1990-01-01 00:00:00")), plan: "start 10 12:00:00, next 11 12:00:00, TooManyMissedTimes"},
		"too late":                        {cron: newCron("0 * * * *", within(29), last("2026-03-10 11:00:00")), plan: "next 10 13:00:00, MissSchedule"},
		"just in time":                    {cron: newCron("0 * * * *", within(30), last("2026-03-10 11:00:00")), plan: "start 10 12:00:00, next 10 13:00:00"},
		"a schedule that has just changed": {
			cron: newCron(minute, last("2026-03-10 11:00:00")), since: at("2026-03-10 12:00:20"), plan: "next 10 12:01:00",
		},
		"every":                       {cron: newCron("@every 7m", created("2026-03-10 11:00:00")), plan: "start 10 11:56:00, next 10 12:03:00"},
		"every, not yet":              {cron: newCron("@every 7m", last("2026-03-10 11:56:00")), plan: "next 10 12:03:00"},
		"hourly":                      {cron: newCron("@hourly", last("2026-03-10 12:00:00")), plan: "next 10 13:00:00"},
		"a last time in the future":   {cron: newCron(minute, last("2026-03-10 14:00:00")), plan: "next 10 14:01:00"},
		"in a time zone":              {cron: newCron("0 9 * * *", zone("America/New_York"), last("2026-03-09 13:00:00")), plan: "next 10 13:00:00"},
		"no such time zone":           {cron: newCron(minute, zone("Nowhere/X")), plan: "UnknownTimeZone"},
		"an old zone in a schedule":   {cron: newCron("TZ=America/New_York 0 9 * * *", last("2026-03-09 13:00:00")), plan: "next 10 13:00:00, UnsupportedSchedule"},
		"no schedule":                 {cron: newCron("x"), plan: "UnparseableSchedule"},
		"one that upsets the parser":  {cron: newCron("TZ=0"), plan: "UnsupportedSchedule, UnparseableSchedule"},
		"no date ever":                {cron: newCron("59 23 31 2 *"), plan: "InvalidSchedule"},
		"suspended":                   {cron: newCron(minute, suspend), plan: ""},
		"deleted":                     {cron: newCron(minute, func(c *batchv1.CronJob) { c.DeletionTimestamp = new(metav1.NewTime(now)) }), plan: ""},
		"forbidden while one runs":    {cron: newCron(minute, concurrency(batchv1.ForbidConcurrent), active("x"), last("2026-03-10 11:59:00")), jobs: []*batchv1.Job{newJob("x")}, plan: "next 10 12:01:00, JobAlreadyActive", active: "x"},
		"replaced":                    {cron: newCron(minute, concurrency(batchv1.ReplaceConcurrent), active("x"), last("2026-03-10 11:59:00")), jobs: []*batchv1.Job{newJob("x")}, plan: "replace x, start 10 12:00:00, next 10 12:01:00", active: "x"},
		"side by side":                {cron: newCron(minute, active("x"), last("2026-03-10 11:59:00")), jobs: []*batchv1.Job{newJob("x")}, plan: "start 10 12:00:00, next 10 12:01:00", active: "x"},
		"one has completed":           {cron: newCron(minute, concurrency(batchv1.ForbidConcurrent), active("x"), last("2026-03-10 11:59:00")), jobs: []*batchv1.Job{newJob("x", ends(batchv1.JobComplete, "2026-03-10 12:00:01"))}, plan: "start 10 12:00:00, next 10 12:01:00, SawCompletedJob"},
		"one is gone":                 {cron: newCron(minute, active("x"), last("2026-03-10 12:00:00")), gone: map[types.UID]bool{"x": true}, plan: "next 10 12:01:00, MissingJob"},
		"one that the informer lacks": {cron: newCron(minute, active("x"), last("2026-03-10 12:00:00")), plan: "next 10 12:01:00", active: "x"},
		"somebody's own job":          {cron: newCron(minute, last("2026-03-10 12:00:00")), jobs: []*batchv1.Job{newJob("x")}, plan: "next 10 12:01:00, UnexpectedJob"},
		"killed after the creation":   {cron: newCron(minute, last("2026-03-10 11:59:00")), jobs: []*batchv1.Job{ofTime("2026-03-10 12:00:00")}, plan: "next 10 12:01:00", active: "c-29552400", last: "12:00:00"},
		"killed, and the job is over": {cron: newCron(minute), jobs: []*batchv1.Job{func() *batchv1.Job {
			j := ofTime("2026-03-10 12:00:00")
			ends(batchv1.JobFailed, "2026-03-10 12:00:01")(j)
			return j
		}()}, plan: "next 10 12:01:00", last: "12:00:00"},
		"one of the future is a trick": {cron: newCron(minute, last("2026-03-10 11:59:00")), jobs: []*batchv1.Job{func() *batchv1.Job {
			j := ofTime("2026-03-10 18:00:00")
			ends(batchv1.JobFailed, "2026-03-10 12:00:01")(j)
			return j
		}()}, plan: "start 10 12:00:00, next 10 12:01:00"},
		"its job exists, in the list": {cron: newCron(minute, active("c-29552400")), plan: "next 10 12:01:00", active: "c-29552400"},
		"history": {cron: newCron(minute, last("2026-03-10 12:00:00")), jobs: []*batchv1.Job{
			newJob("s5", ends(batchv1.JobComplete, "2026-03-10 11:05:00")), newJob("s1", ends(batchv1.JobComplete, "2026-03-10 11:01:00")),
			newJob("s4", ends(batchv1.JobComplete, "2026-03-10 11:04:00")), newJob("s3", ends(batchv1.JobComplete, "2026-03-10 11:03:00")),
			newJob("f1", ends(batchv1.JobFailed, "2026-03-10 11:03:00")),
		}, plan: "remove s1, next 10 12:01:00"},
		"a history of nothing": {cron: newCron(minute, last("2026-03-10 12:00:00"), func(c *batchv1.CronJob) { c.Spec.FailedJobsHistoryLimit = new(int32(0)) }), jobs: []*batchv1.Job{
			newJob("f1", ends(batchv1.JobFailed, "2026-03-10 11:03:00")),
		}, plan: "remove f1, next 10 12:01:00"},
	} {
		t.Run(name, func(t *testing.T) {
			p := planFor(facts{cron: tt.cron, jobs: tt.jobs, gone: tt.gone, since: tt.since, now: now})
			if got := describe(p); got != tt.plan {
				t.Errorf("plan:   %q\nwanted: %q", got, tt.plan)
			}
			var names []string
			for _, r := range p.status.Active {
				names = append(names, r.Name)
			}
			if got := strings.Join(names, " "); got != tt.active {
				t.Errorf("active: %q, want %q", got, tt.active)
			}
			if got := p.status.LastScheduleTime; tt.last != "" && got.UTC().Format(time.TimeOnly) != tt.last {
				t.Errorf("last: %v, want %s", got, tt.last)
			}
		})
	}
}

// Where clocks change, a time that does not exist is left out, and one that comes twice counts
// twice: so the library, and so upstream.
func TestClocksChange(t *testing.T) {
	for name, tt := range map[string]struct {
		schedule, zone, from string
		want                 []string
	}{
		"spring forward": {"30 2 * * *", "Europe/Berlin", "2026-03-28 00:00:00", []string{"28 01:30", "30 00:30", "31 00:30"}},
		"fall back":      {"30 2 * * *", "Europe/Berlin", "2026-10-24 00:00:00", []string{"24 00:30", "25 00:30", "25 01:30", "26 01:30"}},
		"every hour":     {"0 * * * *", "Europe/Berlin", "2026-10-24 23:30:00", []string{"25 00:00", "25 01:00", "25 02:00"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parse(&batchv1.CronJobSpec{Schedule: tt.schedule, TimeZone: &tt.zone})
			if err != nil {
				t.Fatal(err)
			}
			when := at(tt.from)
			for _, want := range tt.want {
				got, err := timesOf(s, when, when)
				if err != nil {
					t.Fatal(err)
				}
				if text := got.next.UTC().Format("02 15:04"); text != want {
					t.Errorf("after %s: %s, want %s", when, text, want)
				}
				when = got.next
			}
		})
	}
}

// The latest time found by looking back is the one found by going forward.
func TestLatestIsTheSameBothWays(t *testing.T) {
	for _, schedule := range []string{"* * * * *", "*/7 3-5 * * 1-5", "30 6-16/4 * * 1-5", "0 0 29 2 *", "5 4 1 */3 *", "@every 97s", "@weekly"} {
		for _, zone := range []string{"UTC", "America/New_York", "Australia/Lord_Howe"} {
			s, err := parse(&batchv1.CronJobSpec{Schedule: schedule, TimeZone: &zone})
			if err != nil {
				t.Fatal(err)
			}
			for step := range 14 {
				start := at("2026-01-01 00:00:00")
				now := start.Add(time.Duration(step*step*step) * 977 * time.Second)
				got, err := timesOf(s, start, now)
				if err != nil {
					t.Fatal(err)
				}
				var want time.Time
				n := 0
				next := s.Next(start)
				for ; !next.After(now); next = s.Next(next) {
					want, n = next, n+1
				}
				if !got.latest.Equal(want) || got.many != (n > manyMissed) || !got.next.Equal(next) {
					t.Errorf("%s in %s until %s: %+v, want %s %s, %d", schedule, zone, now, got, want, next, n)
				}
			}
		}
	}
}

func TestJobOfATime(t *testing.T) {
	c := newCron("* * * * *", zone("Asia/Tokyo"))
	j := jobFor(c, at("2026-03-10 12:00:00"))
	want := map[string]string{"n": "1", batchv1.CronJobScheduledTimestampAnnotation: "2026-03-10T21:00:00+09:00"}
	if fmt.Sprint(j.Annotations) != fmt.Sprint(want) || j.Labels["l"] != "1" || j.Name != "c-29552400" || !metav1.IsControlledBy(j, c) {
		t.Errorf("%+v", j.ObjectMeta)
	}
	if len(c.Spec.JobTemplate.Annotations) != 1 {
		t.Error("the template was changed")
	}
}
