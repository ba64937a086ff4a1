package explain

import (
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/controller/job"
)

// JobFacts is what is known about a Job.
type JobFacts struct {
	Crowd
	Job *batchv1.Job
}

// batch builds the explanation of a Job.
type batch struct {
	findings
	JobFacts
	pods crowd
}

// Job explains why a Job is not done, or how it ended.
func Job(f JobFacts) Explanation {
	j := f.Job
	e := &batch{findings: newFindings("Job", j, f.About), JobFacts: f, pods: sort(f.Pods, 0, f.Now)}
	if ref := metav1.GetControllerOf(j); ref != nil && ref.Kind == "CronJob" {
		e.note("it belongs to cron job %s: wherry explain -n %s cronjob/%s", ref.Name, j.Namespace, ref.Name)
	}
	switch {
	case e.deleted(j):
		return e.out
	case e.finished():
	case j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName:
		e.out.State = "Managed by " + *j.Spec.ManagedBy
		e.wait(report.Wait{Step: "controller " + *j.Spec.ManagedBy, Said: "the job is left to it (spec.managedBy)", Next: "it does its work"})
		e.conclude("")
	case j.Spec.Suspend != nil && *j.Spec.Suspend:
		e.suspended()
	default:
		e.running()
	}
	e.pods.failures(&e.findings)
	if x := j.Status.FailedIndexes; x != nil && *x != "" {
		e.note("indexes that have failed: %s", *x)
	}
	return e.out
}

func (e *batch) condition(t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range e.Job.Status.Conditions {
		if c := &e.Job.Status.Conditions[i]; c.Type == t && c.Status == v1.ConditionTrue {
			return c
		}
	}
	return nil
}

// numbers says how far the job is.
func (e *batch) numbers() string {
	st, n := e.Job.Status, e.Job.Spec.Completions
	if n == nil {
		return fmt.Sprintf("%d succeeded, %d active, %d failed", st.Succeeded, st.Active, st.Failed)
	}
	return fmt.Sprintf("%d of %d succeeded, %d active, %d failed", st.Succeeded, *n, st.Active, st.Failed)
}

// finished explains a job that has ended, or is about to: the last pods may have to end first.
func (e *batch) finished() bool {
	if c := e.condition(batchv1.JobComplete); c != nil {
		e.out.State, e.out.Since = "Complete", report.When(c.LastTransitionTime.Time)
		e.out.Summary = "It is done: " + e.numbers() + "."
		return true
	}
	if c := e.condition(batchv1.JobFailed); c != nil {
		e.out.State, e.out.Since = "Failed", report.When(c.LastTransitionTime.Time)
		e.out.Summary = "It has failed and does not go on" + report.Details(c.Reason, c.Message) + "; " + e.numbers() + "."
		if p := e.lastFailed(); p != nil {
			e.out.ask = append(e.out.ask, p)
		}
		return true
	}
	for t, word := range map[batchv1.JobConditionType]string{batchv1.JobFailureTarget: "Failing", batchv1.JobSuccessCriteriaMet: "Completing"} {
		c := e.condition(t)
		if c == nil {
			continue
		}
		e.out.State, e.out.Since = word, report.When(c.LastTransitionTime.Time)
		e.held(append(e.pods.ending, append(e.pods.unready, e.pods.available...)...), ", which has to end first")
		e.conclude("The last pods have ended; the job controller says so in a moment.")
		e.note("what is decided%s", report.Details(c.Reason, c.Message))
		return true
	}
	return false
}

// lastFailed returns the pod that failed last.
func (e *batch) lastFailed() *v1.Pod {
	for _, p := range slices.Backward(e.pods.ended) {
		if p.Status.Phase == v1.PodFailed {
			return p
		}
	}
	return nil
}

func (e *batch) suspended() {
	e.out.State = "Suspended"
	w := report.Wait{
		Step: "the end of the suspension (spec.suspend)", Said: e.numbers(),
		Next: fmt.Sprintf(`kubectl patch -n %s job/%s -p '{"spec":{"suspend":false}}'`, e.Job.Namespace, e.Job.Name),
	}
	if c := e.condition(batchv1.JobSuspended); c != nil {
		e.out.Since = report.When(c.LastTransitionTime.Time)
		w.Since = e.out.Since
	}
	e.wait(w)
	if len(e.pods.ending) > 0 {
		e.note("its pods are ending: %s", names(e.pods.ending))
	}
	e.conclude("")
}

// running explains a job that goes on.
func (e *batch) running() {
	j := e.Job
	e.out.State = "Running"
	if j.Status.StartTime != nil {
		e.out.Since = report.When(j.Status.StartTime.Time)
	}
	e.parallel()
	e.backOff()
	active := len(e.pods.available) + len(e.pods.unready)
	e.held(e.pods.unready, "")
	if active == 0 && len(e.out.Waits) == 0 {
		e.none()
	}
	e.conclude("It runs; nothing holds it up: " + e.numbers() + ".")
	if len(e.out.Waits) > 0 {
		e.note("%s", e.numbers())
	}
	if s := j.Spec.ActiveDeadlineSeconds; s != nil && j.Status.StartTime != nil {
		e.note("it fails if it is not done %s (activeDeadlineSeconds)", in(j.Status.StartTime.Add(time.Duration(*s)*time.Second), e.Now))
	}
}

func (e *batch) parallel() {
	if p := e.Job.Spec.Parallelism; p != nil && *p == 0 {
		e.wait(report.Wait{Step: "parallelism", Said: "spec.parallelism is 0: no pod is started", Next: "it is raised"})
	}
}

// backOff waits for the time that has to pass after a failure.
func (e *batch) backOff() {
	wait := job.BackOff(e.Job, e.Pods, e.Now)
	if wait == 0 || len(e.pods.available)+len(e.pods.unready) > 0 {
		return
	}
	retry := e.Now.Add(wait)
	limit := "6"
	if l := e.Job.Spec.BackoffLimit; l != nil {
		limit = fmt.Sprint(*l)
	}
	w := report.Wait{
		Step: "back-off after failed pods", Said: fmt.Sprintf("%s so far; more than %s (backoffLimit) fail the job", count(e.Job.Status.Failed, "failure"), limit),
		Next: "the time has passed; a new pod is started then", Retry: report.When(retry),
	}
	if p := e.lastFailed(); p != nil {
		e.out.ask = append(e.out.ask, p)
		w.Next += fmt.Sprintf("; below is how pod %s ended", p.Name)
	}
	e.wait(w)
}

// none explains why there is no pod.
func (e *batch) none() {
	if len(e.pods.ending) > 0 {
		e.held(e.pods.ending, ", which has to end before it is replaced")
		return
	}
	if e.failedCreate(e.Pods) {
		return
	}
	said := "nothing was refused"
	if e.Job.Status.StartTime == nil {
		said = "the job controller has not looked at the job yet"
	}
	e.wait(report.Wait{Step: "creation of its pods", Said: said, Next: "the job controller creates them"})
}
