package job

import (
	"cmp"
	"math"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

// burst is how many pods one reconciliation creates, deletes or counts at most (upstream's value). It
// also limits how long the status's list of what is uncounted gets.
const burst = 500

// plan is what has to be done about a job's pods.
type plan struct {
	// verdict is why the job ends, or nil. Its type is FailureTarget or SuccessCriteriaMet.
	verdict *batchv1.JobCondition
	// remove are the pods to delete. At the end of a job they are counted; otherwise they are not, and
	// their finalizer goes first.
	remove []*v1.Pod
	// create are the pods to create.
	create []newPod
	// track are pods without the finalizer that must have it, so that they are counted.
	track []*v1.Pod
	// managed is whether the number of pods was looked at.
	managed bool
	// wait is after how long to look again although nothing has happened. 0 is never.
	wait time.Duration
}

// newPod is a pod to create, and for an index with a limit of failures the pod that it replaces.
type newPod struct {
	index    int
	replaces *v1.Pod
}

func (p *plan) again(wait time.Duration) {
	if wait > 0 && (p.wait == 0 || wait < p.wait) {
		p.wait = wait
	}
}

// planFor says what to do about a job that has not finished.
func planFor(c *census) plan {
	p := plan{verdict: verdictOn(c)}
	if p.verdict != nil {
		p.remove = c.active[:min(len(c.active), burst)]
		return p
	}
	if c.job.DeletionTimestamp != nil {
		return p
	}
	if left, ok := untilDeadline(c); ok {
		p.again(left)
	}
	if p.track = missed(c); len(p.track) > 0 {
		return p // how many there have to be depends on these
	}
	p.managed = true
	p.number(c)
	p.repair(c)
	return p
}

// verdictOn says why a job ends, in the order in which the reasons count: what was decided before,
// then failures, then success.
func verdictOn(c *census) *batchv1.JobCondition {
	for _, t := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if isTrue(&c.job.Status, t) {
			return conditionOf(&c.job.Status, t)
		}
	}
	fails := func(reason, message string) *batchv1.JobCondition {
		return condition(batchv1.JobFailureTarget, reason, message, c.now)
	}
	if message := failsJob(c); message != "" {
		return fails(batchv1.JobReasonPodFailurePolicy, message)
	}
	if c.failed > *c.job.Spec.BackoffLimit || tooManyRestarts(c) {
		return fails(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if left, ok := untilDeadline(c); ok && left <= 0 {
		return fails(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	}
	if !isIndexed(c.job) {
		return nil
	}
	lost, most := c.lost.len(), c.job.Spec.MaxFailedIndexes
	switch {
	case most != nil && lost > int(*most):
		return fails(batchv1.JobReasonMaxFailedIndexesExceeded,
			"Job has exceeded the specified maximal number of failed indexes")
	case lost > 0 && lost+c.completed.len() >= completions(c.job):
		return fails(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	}
	if message, ok := succeeds(c.job.Spec.SuccessPolicy, c.completed, completions(c.job)); ok {
		return condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message, c.now)
	}
	return nil
}

// failsJob returns the message of a rule by which a failed pod fails the whole job, or "".
func failsJob(c *census) string {
	policy := c.job.Spec.PodFailurePolicy
	if policy == nil {
		return ""
	}
	for _, p := range c.pods {
		if !isFailed(c.job, p) {
			continue
		}
		if g := judge(policy, p); g.action == batchv1.PodFailurePolicyActionFailJob {
			return g.message
		}
	}
	return ""
}

// tooManyRestarts reports whether the containers of pods that restart in place have been restarted as
// often as pods may fail.
func tooManyRestarts(c *census) bool {
	if c.job.Spec.Template.Spec.RestartPolicy != v1.RestartPolicyOnFailure {
		return false
	}
	n := int64(0)
	for _, p := range c.pods {
		if p.Status.Phase != v1.PodRunning && p.Status.Phase != v1.PodPending {
			continue
		}
		for _, st := range append(slices.Clone(p.Status.InitContainerStatuses), p.Status.ContainerStatuses...) {
			n += int64(st.RestartCount)
		}
	}
	return n >= max(1, int64(*c.job.Spec.BackoffLimit))
}

// untilDeadline returns how long the job may still be active, if there is a limit.
func untilDeadline(c *census) (left time.Duration, ok bool) {
	limit, start := c.job.Spec.ActiveDeadlineSeconds, startOf(c.job, c.now)
	if limit == nil || start == nil {
		return 0, false
	}
	return seconds(*limit) - c.now.Sub(start.Time), true
}

// seconds is a duration; what does not fit into one is nearly three centuries.
func seconds(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}

// number plans how many pods there are to be.
func (p *plan) number(c *census) {
	if isSuspended(c.job) {
		p.remove = c.active[:min(len(c.active), burst)]
		return
	}
	want := wanted(c)
	if p.remove = surplus(c, want); len(p.remove) > 0 {
		return // a pod is created only when there is none to delete any more
	}
	lack := want - len(c.active)
	if awaitsEnd(c.job) {
		lack -= len(c.terminating)
	}
	if lack <= 0 {
		return
	}
	if !limitsIndexes(c.job) {
		if wait := c.failures.wait(c.now); wait > 0 {
			p.again(wait)
			return
		}
	}
	p.add(c, min(lack, burst))
}

// wanted returns how many pods the job should have: no more than completions are left. A job without
// a number of completions gets no new pods after the first success, and keeps those that it has.
func wanted(c *census) int {
	parallelism := int(*c.job.Spec.Parallelism)
	switch {
	case c.job.Spec.Completions != nil:
		return max(0, min(parallelism, completions(c.job)-int(c.succeeded)))
	case c.succeeded > 0:
		return len(c.active)
	}
	return parallelism
}

// surplus returns the active pods that are too many, and those of an indexed job that have no index
// of their own, or one that needs no pod any more.
func surplus(c *census, want int) []*v1.Pod {
	order := slices.SortedFunc(slices.Values(c.active), compareActive)
	var out, rest []*v1.Pod
	if !isIndexed(c.job) {
		rest = order
	} else {
		best := map[int]*v1.Pod{}
		for _, p := range order {
			best[indexOf(p)] = p
		}
		for _, p := range order {
			if i := indexOf(p); c.counts(p) && best[i] == p && !c.completed.has(i) && !c.lost.has(i) {
				rest = append(rest, p)
			} else {
				out = append(out, p)
			}
		}
	}
	if n := len(c.active) - want - len(out); n > 0 {
		out = append(out, rest[:n]...)
	}
	return out[:min(len(out), burst)]
}

// compareActive orders pods so that those come first that have got the least far: not assigned to a
// node, not running, not ready, ready for a shorter time, restarted more often, younger.
func compareActive(a, b *v1.Pod) int {
	sinceA, readyA := pods.ReadySince(a)
	sinceB, readyB := pods.ReadySince(b)
	return cmp.Or(
		cmp.Compare(rank(a.Spec.NodeName != ""), rank(b.Spec.NodeName != "")),
		cmp.Compare(rank(a.Status.Phase == v1.PodRunning), rank(b.Status.Phase == v1.PodRunning)),
		cmp.Compare(rank(readyA), rank(readyB)),
		sinceB.Compare(sinceA),
		cmp.Compare(mostRestarts(b), mostRestarts(a)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		cmp.Compare(a.UID, b.UID),
	)
}

func rank(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func mostRestarts(p *v1.Pod) int32 {
	n := int32(0)
	for _, c := range p.Status.ContainerStatuses {
		n = max(n, c.RestartCount)
	}
	return n
}

// add plans n new pods. An index that has failed waits for its own delay, in its place.
func (p *plan) add(c *census, n int) {
	if !isIndexed(c.job) {
		p.create = slices.Repeat([]newPod{{index: noIndex}}, n)
		return
	}
	taken := c.completed.union(c.lost).union(indexesOf(c.indexesOf(c.active)))
	if awaitsEnd(c.job) {
		taken = taken.union(indexesOf(c.indexesOf(c.terminating)))
	}
	for _, i := range taken.missing(n, completions(c.job)) {
		last := c.kept[i]
		if last != nil {
			n := min(attempts(last)+1, math.MaxInt32)
			if wait := (failures{int32(n), endOf(last)}).wait(c.now); wait > 0 {
				p.again(wait)
				continue
			}
		}
		p.create = append(p.create, newPod{i, last})
	}
}

// missed returns the pods that were to be deleted without being counted (withdraw), but that ended
// before.
func missed(c *census) []*v1.Pod {
	var out []*v1.Pod
	for _, p := range c.pods {
		ended := pods.IsTerminal(p.Status.Phase) && p.DeletionTimestamp == nil
		if ended && !isTracked(p) && p.Annotations[withdrawn] == string(p.UID) {
			out = append(out, p)
		}
	}
	return out
}

// repair plans to give the finalizer to active pods that lack it. Somebody took it, or we did, and
// did not come to the deletion: without it the pod's end might not be counted.
func (p *plan) repair(c *census) {
	for _, pod := range c.active {
		if !isTracked(pod) && !slices.Contains(p.remove, pod) {
			p.track = append(p.track, pod)
		}
	}
}
