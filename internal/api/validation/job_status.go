package validation

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// statusChange is a change of a job's status. What was wrong before may stay wrong, so that other
// parts can still be reported: most rules apply only if one of the fields that they compare has
// changed.
type statusChange struct {
	*problems
	at       path
	job, old *batchv1.Job
}

// JobStatusUpdate checks the status of a job that replaces old (KEP-4368).
func JobStatusUpdate(j, old *batchv1.Job) field.ErrorList {
	c := &statusChange{&problems{}, field.NewPath("status"), j, old}
	c.counters()
	c.conditions()
	c.times()
	c.indexes()
	return c.list
}

// turned reports whether the job has, or has lost, one of the conditions.
func (c *statusChange) turned(list ...batchv1.JobConditionType) bool {
	return slices.ContainsFunc(list, func(t batchv1.JobConditionType) bool { return jobIs(c.job, t) != jobIs(c.old, t) })
}

func (c *statusChange) finished() bool { return finished(c.job) }

func (c *statusChange) finishedTurned() bool { return finished(c.job) != finished(c.old) }

func finished(j *batchv1.Job) bool {
	return jobIs(j, batchv1.JobComplete) || jobIs(j, batchv1.JobFailed)
}

func changed(a, b any) bool { return !apiequality.Semantic.DeepEqual(a, b) }

func (c *statusChange) counters() {
	s, was := &c.job.Status, &c.old.Status
	c.counts(c.at, counted("active", &s.Active), counted("succeeded", &s.Succeeded), counted("failed", &s.Failed),
		counted("ready", s.Ready), counted("terminating", s.Terminating))
	c.uncounted(s.UncountedTerminatedPods)
	active := s.Active != was.Active
	if c.finished() {
		if s.Active > 0 && (c.finishedTurned() || active) {
			c.invalid(c.at.Child("active"), s.Active, "active>0 is invalid for finished job")
		}
		if n := s.Terminating; n != nil && *n > 0 && (c.finishedTurned() || changed(n, was.Terminating)) {
			c.invalid(c.at.Child("terminating"), *n, "terminating>0 is invalid for finished job")
		}
		u := s.UncountedTerminatedPods
		if u != nil && len(u.Failed)+len(u.Succeeded) > 0 && (c.finishedTurned() || changed(u, was.UncountedTerminatedPods)) {
			c.invalid(c.at.Child("uncountedTerminatedPods"), u, "must be empty for finished job")
		}
	}
	if n := s.Ready; n != nil && *n > s.Active && (changed(n, was.Ready) || active) {
		c.invalid(c.at.Child("ready"), *n, "cannot set more ready pods than active")
	}
	if s.Failed < was.Failed {
		c.invalid(c.at.Child("failed"), s.Failed, "cannot decrease the failed counter")
	}
	spec := &c.job.Spec
	shrinks := isIndexed(spec) && !changed(spec.Completions, spec.Parallelism)
	if s.Succeeded < was.Succeeded && !shrinks {
		c.invalid(c.at.Child("succeeded"), s.Succeeded, "cannot decrease the succeeded counter")
	}
}

func (c *statusChange) uncounted(u *batchv1.UncountedTerminatedPods) {
	if u == nil {
		return
	}
	seen := map[types.UID]bool{}
	check := func(at path, list []types.UID) {
		for i, uid := range list {
			switch at := at.Index(i); {
			case uid == "":
				c.invalid(at, uid, "must not be empty")
			case seen[uid]:
				c.add(field.Duplicate(at, uid))
			}
			seen[uid] = true
		}
	}
	check(c.at.Child("uncountedTerminatedPods", "succeeded"), u.Succeeded)
	check(c.at.Child("uncountedTerminatedPods", "failed"), u.Failed)
}

func (c *statusChange) conditions() {
	const complete, failed = batchv1.JobComplete, batchv1.JobFailed
	const target, met = batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet
	is := func(t batchv1.JobConditionType) bool { return jobIs(c.job, t) }
	was := func(t batchv1.JobConditionType) bool { return jobIs(c.old, t) }
	refuse := func(broken bool, detail string) {
		if broken {
			c.invalid(c.at.Child("conditions"), field.OmitValueType{}, "%s", detail)
		}
	}
	refuse(is(complete) && is(failed) && c.turned(complete, failed), "cannot set Complete=True and Failed=true conditions")
	refuse(is(complete) && is(target) && c.turned(complete, target), "cannot set Complete=True and FailureTarget=true conditions")
	refuse(is(failed) && !is(target) && (c.turned(failed) || changed(c.job.Status.FailedIndexes, c.old.Status.FailedIndexes)),
		"cannot set Failed=True condition without the FailureTarget=true condition")
	refuse(is(complete) && !is(met) && c.turned(complete, met), "cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	refuse(is(met) && is(failed), "cannot set SuccessCriteriaMet=True and Failed=true conditions")
	refuse(is(met) && is(target), "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	refuse(c.job.Spec.SuccessPolicy != nil && !is(met) && is(complete), "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
	for _, t := range []batchv1.JobConditionType{failed, complete, target} {
		refuse(was(t) && !is(t), "cannot disable the terminal "+string(t)+"=True condition")
	}
	refuse(was(met) && !is(met), "cannot disable the SuccessCriteriaMet=True condition")
	refuse(was(complete) && !was(met) && is(met), "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
}

func (c *statusChange) times() {
	s, was, spec := &c.job.Status, &c.old.Status, &c.job.Spec
	complete := jobIs(c.job, batchv1.JobComplete)
	start, completion := c.at.Child("startTime"), c.at.Child("completionTime")
	startChanged, completionChanged := changed(s.StartTime, was.StartTime), changed(s.CompletionTime, was.CompletionTime)
	if c.turned(batchv1.JobComplete) || completionChanged {
		if s.CompletionTime != nil && !complete {
			c.invalid(completion, s.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
		}
		if s.CompletionTime == nil && complete {
			c.required(completion, "completionTime is required for Complete jobs")
		}
	}
	if (startChanged || completionChanged) && s.StartTime != nil && s.CompletionTime != nil && s.CompletionTime.Before(s.StartTime) {
		c.invalid(completion, s.CompletionTime, "must be equal to or after `startTime`")
	}
	if s.CompletionTime != nil && was.CompletionTime != nil && completionChanged {
		c.invalid(completion, s.CompletionTime, isImmutable)
	}
	suspended := spec.Suspend != nil && *spec.Suspend
	nothingToDo := suspended && spec.Completions != nil && *spec.Completions == 0
	if s.StartTime == nil && c.finished() && (c.finishedTurned() || startChanged) && !nothingToDo {
		c.required(start, "startTime is required for finished job")
	}
	resumes := jobIs(c.old, batchv1.JobSuspended) && conditionIs(c.job, batchv1.JobSuspended, corev1.ConditionFalse)
	if was.StartTime != nil && startChanged && !suspended && !resumes {
		c.invalid(start, s.StartTime, "field is immutable for unsuspended job once set")
	}
}

func (c *statusChange) indexes() {
	s, was, spec := &c.job.Status, &c.old.Status, &c.job.Spec
	completed, failed := c.at.Child("completedIndexes"), c.at.Child("failedIndexes")
	completedChanged, failedChanged := s.CompletedIndexes != was.CompletedIndexes, changed(s.FailedIndexes, was.FailedIndexes)
	if completedChanged && s.CompletedIndexes != "" && !isIndexed(spec) {
		c.invalid(completed, s.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if failedChanged && s.FailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		c.invalid(failed, *s.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
	if spec.Completions == nil {
		return
	}
	done, err := parseIndexes(s.CompletedIndexes, *spec.Completions)
	if completedChanged && err != nil {
		c.invalid(completed, s.CompletedIndexes, "error parsing completedIndexes: %v", err)
	}
	if s.FailedIndexes == nil {
		return
	}
	lost, err := parseIndexes(*s.FailedIndexes, *spec.Completions)
	if failedChanged && err != nil && spec.BackoffLimitPerIndex != nil {
		c.invalid(failed, *s.FailedIndexes, "error parsing failedIndexes: %v", err)
	}
	if i, both := overlap(done, lost); both && (completedChanged || failedChanged) {
		c.invalid(failed, *s.FailedIndexes, "failedIndexes and completedIndexes overlap at index: %d", i)
	}
}
