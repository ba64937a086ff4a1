package job

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// outcome is what became of a plan.
type outcome struct {
	created, removed, removedReady int32
	// incomplete is whether not all pods that had to go were deleted: the job has not ended yet.
	incomplete bool
}

// account is how the ends of pods are counted, so that none is counted twice or lost. The order is
//
//  1. status: what has ended is listed as uncounted, by UID,
//  2. release: the finalizers go; a listed pod that lacks its finalizer may go at any moment,
//  3. settle: those whose finalizer is gone move from the list into the counters.
//
// Whoever is interrupted finds in the list what was to be counted, and in the finalizers what was not
// listed.
type account struct {
	status   batchv1.JobStatus
	release  []*v1.Pod
	failures failures // with those that are listed now
	// terminal is the condition with which the job is finished, once nothing is left. nil if it goes on.
	terminal *batchv1.JobCondition
	// event is one about the job that follows the status, or nil.
	event *event
	// actions counts the actions of the policy by which failures were judged.
	actions map[batchv1.PodFailurePolicyAction]int
}

// event is one that a user sees.
type event struct{ kind, reason, message string }

// accountFor says how to report and count, after a plan was carried out.
func accountFor(c *census, p plan, o outcome) account {
	a := account{status: *c.job.Status.DeepCopy(), failures: c.before, actions: map[batchv1.PodFailurePolicyAction]int{}}
	st := &a.status
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	st.StartTime = startOf(c.job, c.now)
	st.Active = int32(len(c.active)) + o.created - o.removed
	st.Ready = new(countReady(c.active) - o.removedReady)
	st.Terminating = new(int32(len(c.terminating)) + o.removed)
	verdict := p.verdict
	if verdict == nil && isComplete(c, st.Active) {
		verdict = condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached,
			"Reached expected number of succeeded pods", c.now)
	}
	if verdict == nil && p.managed {
		a.reportSuspension(c)
	}
	settle(st, trackedOf(c.pods))
	if o.incomplete {
		a.list(c, nil)
	} else {
		a.list(c, verdict)
	}
	if isIndexed(c.job) {
		st.CompletedIndexes, st.Succeeded = c.completed.String(), int32(c.completed.len())
		st.FailedIndexes = nil
		if limitsIndexes(c.job) {
			st.FailedIndexes = new(c.lost.String())
		}
	}
	a.decide(verdict, c.now)
	if o.incomplete {
		a.terminal = nil
	}
	return a
}

// startOf returns since when the job has been active, without a break: not while it is suspended.
func startOf(j *batchv1.Job, now time.Time) *metav1.Time {
	resumes := isTrue(&j.Status, batchv1.JobSuspended) && !isSuspended(j)
	if resumes || j.Status.StartTime == nil && !isSuspended(j) {
		return new(metav1.NewTime(now))
	}
	return j.Status.StartTime
}

// isComplete reports whether all completions have been reached, and nothing runs any more.
func isComplete(c *census, active int32) bool {
	if c.job.Spec.Completions == nil {
		return c.succeeded > 0 && active == 0
	}
	return c.succeeded >= *c.job.Spec.Completions && active == 0
}

func (a *account) reportSuspension(c *census) {
	suspended := condition(batchv1.JobSuspended, "JobSuspended", "Job suspended", c.now)
	name := "Suspended"
	if !isSuspended(c.job) {
		suspended.Status, suspended.Reason, suspended.Message = v1.ConditionFalse, "JobResumed", "Job resumed"
		name = "Resumed"
	}
	if !setCondition(&a.status, *suspended) {
		return
	}
	a.event = &event{v1.EventTypeNormal, name, suspended.Message}
	if isSuspended(c.job) {
		a.status.StartTime = nil
	}
}

// trackedOf returns the UIDs of pods that have the finalizer.
func trackedOf(list []*v1.Pod) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, p := range list {
		if isTracked(p) {
			out[p.UID] = true
		}
	}
	return out
}

// settle moves pods that are not tracked any more from the list of what is uncounted into the
// counters.
func settle(st *batchv1.JobStatus, tracked map[types.UID]bool) {
	u := st.UncountedTerminatedPods
	left := func(list []types.UID) []types.UID {
		return slices.DeleteFunc(slices.Clone(list), func(uid types.UID) bool { return !tracked[uid] })
	}
	succeeded, failed := left(u.Succeeded), left(u.Failed)
	st.Succeeded += int32(len(u.Succeeded) - len(succeeded))
	st.Failed += int32(len(u.Failed) - len(failed))
	st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: succeeded, Failed: failed}
}

// list puts pods that have ended into the list of what is uncounted, and plans to release them.
func (a *account) list(c *census, verdict *batchv1.JobCondition) {
	u := a.status.UncountedTerminatedPods
	var succeeded, failed []*v1.Pod
	for _, p := range releasable(c, verdict) {
		a.release = append(a.release, p)
		switch {
		case c.uncounted[p.UID] || !c.counts(p):
		case p.Status.Phase == v1.PodSucceeded:
			succeeded = append(succeeded, p)
			if !isIndexed(c.job) { // an index cannot be counted twice
				u.Succeeded = append(u.Succeeded, p.UID)
			}
		case isFailed(c.job, p) || verdict != nil && verdict.Type == batchv1.JobFailureTarget:
			failed = append(failed, p)
			g := judge(c.job.Spec.PodFailurePolicy, p)
			if g.action != "" {
				a.actions[g.action]++
			}
			if g.counts() {
				u.Failed = append(u.Failed, p.UID)
			}
		}
	}
	a.failures = a.failures.with(succeeded, failed)
}

// releasable returns the pods that may lose their finalizer: those first that are listed already, so
// that the list does not grow while they cannot be released; then by index, so that completed indexes
// make few ranges.
func releasable(c *census, verdict *batchv1.JobCondition) []*v1.Pod {
	var out []*v1.Pod
	for _, p := range c.pods {
		if isTracked(p) && mayRelease(c, p, verdict) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(rank(!c.uncounted[a.UID]), rank(!c.uncounted[b.UID])),
			cmp.Compare(indexOf(a), indexOf(b)), cmp.Compare(a.UID, b.UID))
	})
	return out[:min(len(out), burst)]
}

// mayRelease reports whether a pod may lose its finalizer: its end counts now, or nothing of the job
// counts any more.
func mayRelease(c *census, p *v1.Pod, verdict *batchv1.JobCondition) bool {
	if c.job.DeletionTimestamp != nil || verdict != nil || p.Status.Phase == v1.PodSucceeded {
		return true
	}
	return isFailed(c.job, p) && (!c.counts(p) || c.kept[indexOf(p)] != p)
}

// decide puts a verdict into the status, and prepares the condition that will follow it.
func (a *account) decide(verdict *batchv1.JobCondition, now time.Time) {
	if verdict == nil {
		return
	}
	setCondition(&a.status, *verdict)
	t := batchv1.JobComplete
	if verdict.Type == batchv1.JobFailureTarget {
		t = batchv1.JobFailed
	}
	a.terminal = condition(t, verdict.Reason, verdict.Message, now)
}

// finish makes the job finished, if nothing of it is left: no pod that runs, ends, or is still to be
// counted.
func finish(j *batchv1.Job, st *batchv1.JobStatus, terminal *batchv1.JobCondition, tracked map[types.UID]bool) bool {
	u := st.UncountedTerminatedPods
	if terminal == nil || *st.Terminating > 0 || st.Active > 0 || len(u.Succeeded)+len(u.Failed)+len(tracked) > 0 {
		return false
	}
	setCondition(st, *terminal)
	if terminal.Type == batchv1.JobComplete {
		st.CompletionTime = &terminal.LastTransitionTime
	}
	nothing := isSuspended(j) && j.Spec.Completions != nil && *j.Spec.Completions == 0
	if st.StartTime == nil && !nothing {
		st.StartTime = &terminal.LastTransitionTime // a finished job has one; this one was suspended as it ended
	}
	return true
}
