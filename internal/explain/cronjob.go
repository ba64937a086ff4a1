package explain

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/controller/cronjob"
)

// CronJobFacts is what is known about a CronJob.
type CronJobFacts struct {
	About
	CronJob *batchv1.CronJob
	// Jobs that it controls.
	Jobs []*batchv1.Job
}

// CronJob explains when a CronJob runs next, or why it does not.
func CronJob(f CronJobFacts) Explanation {
	c := f.CronJob
	e := newFindings("CronJob", c, f.About)
	if e.deleted(c) {
		return e.out
	}
	e.out.State = fmt.Sprintf("schedule %q, %s", c.Spec.Schedule, zoneOf(c))
	look, err := cronjob.LookAt(c, f.Now)
	switch {
	case err != nil:
		e.wait(report.Wait{Step: "a valid schedule", Said: err.Error(), Next: "spec.schedule and spec.timeZone are put right"})
		e.conclude("")
	case c.Spec.Suspend != nil && *c.Spec.Suspend:
		e.wait(report.Wait{
			Step: "the end of the suspension (spec.suspend)", Said: "no jobs are started; " + f.onTime(look),
			Next: fmt.Sprintf(`kubectl patch -n %s cronjob/%s -p '{"spec":{"suspend":false}}'`, c.Namespace, c.Name),
		})
		e.conclude("")
	default:
		f.due(&e, look)
		if len(e.out.Waits) > 0 {
			e.conclude("")
		} else {
			e.out.Summary = "It runs next " + f.when(look.Next) + "."
		}
	}
	f.past(&e)
	return e.out
}

func zoneOf(c *batchv1.CronJob) string {
	if z := c.Spec.TimeZone; z != nil {
		return *z
	}
	return "in the time zone of the controllers"
}

// onTime says when it would run.
func (f *CronJobFacts) onTime(look cronjob.Look) string {
	return "else the next would start " + f.when(look.Next)
}

// when writes a time of the schedule, in its zone.
func (f *CronJobFacts) when(t time.Time) string {
	if z := f.CronJob.Spec.TimeZone; z != nil {
		if known, err := time.LoadLocation(*z); err == nil {
			t = t.In(known)
		}
	}
	return fmt.Sprintf("in %v, at %s", max(0, t.Sub(f.Now)).Round(time.Second), t.Format("2006-01-02 15:04:05 MST"))
}

// due explains a time that has come, and whose job has not started.
func (f *CronJobFacts) due(e *findings, look cronjob.Look) {
	c := f.CronJob
	if look.Latest.IsZero() {
		return
	}
	if c.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(c.Status.Active) > 0 {
		e.wait(report.Wait{
			Step: "end of job " + c.Status.Active[0].Name, Since: report.When(look.Latest),
			Said: "a time has come, but the job of an earlier one still runs, and concurrencyPolicy is Forbid",
			Next: fmt.Sprintf("it ends: wherry explain -n %s job/%s", c.Namespace, c.Status.Active[0].Name),
		})
		return
	}
	if look.Missed {
		e.note("the time %s was missed: its job could not start within %d s (startingDeadlineSeconds)",
			look.Latest.UTC().Format(time.RFC3339), *c.Spec.StartingDeadlineSeconds)
		return
	}
	if ev := e.event("FailedCreate", "", ""); ev != nil && !eventTime(ev).Before(look.Latest) {
		e.refused("creation of the job of "+look.Latest.UTC().Format(time.RFC3339), report.When(look.Latest), ev.Message)
		return
	}
	e.wait(report.Wait{
		Step: "cron job controller", Since: report.When(look.Latest), Said: "a time has come, and its job was not created yet",
		Next: "the controller runs and creates it",
	})
}

// past notes what runs, and how the last job ended.
func (f *CronJobFacts) past(e *findings) {
	st := f.CronJob.Status
	for _, r := range st.Active {
		e.note("job %s runs: wherry explain -n %s job/%s", r.Name, f.CronJob.Namespace, r.Name)
	}
	if st.LastScheduleTime == nil {
		e.note("it has not run yet")
		return
	}
	var last *batchv1.Job
	for _, j := range f.Jobs {
		if last == nil || j.CreationTimestamp.After(last.CreationTimestamp.Time) {
			last = j
		}
	}
	result := "its job is not there any more"
	if last != nil {
		result = "job " + last.Name + " " + resultOf(last)
	}
	e.note("last scheduled %s ago, for %s: %s", f.Now.Sub(st.LastScheduleTime.Time).Round(time.Second), st.LastScheduleTime.UTC().Format(time.RFC3339), result)
	if t := st.LastSuccessfulTime; t != nil {
		e.note("last success %s ago", f.Now.Sub(t.Time).Round(time.Second))
	} else {
		e.note("none of its jobs has succeeded yet")
	}
}

// resultOf says how a job ended.
func resultOf(j *batchv1.Job) string {
	for _, c := range j.Status.Conditions {
		switch {
		case c.Status != v1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			return "succeeded"
		case c.Type == batchv1.JobFailed:
			return "failed" + report.Details(c.Reason, c.Message)
		case c.Type == batchv1.JobSuspended:
			return "is suspended"
		}
	}
	return "has not ended"
}
