package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
)

// facts are all that a plan follows from. Nothing of them is changed.
type facts struct {
	job  *batchv1.Job
	pods []*v1.Pod // those that it controls
	// before are the failures that were counted already.
	before failures
	now    time.Time
}

// census is what the facts amount to.
type census struct {
	facts
	active, terminating []*v1.Pod
	// uncounted are the pods that the status lists, which are still to be added to its counters.
	uncounted map[types.UID]bool
	// What has ended, and is in no counter and no list of the status yet.
	newSucceeded, newFailed []*v1.Pod
	// How many ended so far: what the status counts, what it lists, and what is new.
	succeeded, failed int32
	failures          failures
	// For indexed jobs: the indexes that are done, and those that have failed for good.
	completed, lost indexes
	// The failed pod of each index that waits to be replaced. It is kept until then: the next pod has
	// to tell how many there were before it.
	kept map[int]*v1.Pod
}

func take(f facts) *census {
	st := &f.job.Status
	c := &census{facts: f, uncounted: uncountedOf(st)}
	for _, p := range f.pods {
		switch {
		case pods.IsActive(p):
			c.active = append(c.active, p)
		case pods.IsTerminating(p):
			c.terminating = append(c.terminating, p)
		}
		if !isTracked(p) || !c.counts(p) || c.uncounted[p.UID] {
			continue
		}
		if p.Status.Phase == v1.PodSucceeded {
			c.newSucceeded = append(c.newSucceeded, p)
		} else if isFailed(f.job, p) {
			c.newFailed = append(c.newFailed, p)
		}
	}
	c.failures = f.before.with(c.newSucceeded, c.newFailed)
	c.succeeded = st.Succeeded + int32(len(c.newSucceeded))
	c.failed = st.Failed + c.countedFailures()
	if u := st.UncountedTerminatedPods; u != nil {
		c.succeeded += int32(len(u.Succeeded))
		c.failed += int32(len(u.Failed))
	}
	if isIndexed(f.job) {
		c.takeIndexes()
	}
	return c
}

// uncountedOf returns the UIDs of the pods that the status lists.
func uncountedOf(st *batchv1.JobStatus) map[types.UID]bool {
	out := map[types.UID]bool{}
	if u := st.UncountedTerminatedPods; u != nil {
		for _, uid := range slices.Concat(u.Succeeded, u.Failed) {
			out[uid] = true
		}
	}
	return out
}

// counts reports whether a pod's end means something: a pod of an indexed job must have an index that
// the job wants.
func (c *census) counts(p *v1.Pod) bool {
	if !isIndexed(c.job) {
		return true
	}
	i := indexOf(p)
	return i != noIndex && i < completions(c.job)
}

func (c *census) countedFailures() int32 {
	n := int32(0)
	for _, p := range c.newFailed {
		if judge(c.job.Spec.PodFailurePolicy, p).counts() {
			n++
		}
	}
	return n
}

func (c *census) takeIndexes() {
	var done, lost []int
	for _, p := range c.newSucceeded {
		done = append(done, indexOf(p))
	}
	c.completed = parseIndexes(c.job.Status.CompletedIndexes, completions(c.job)).union(indexesOf(done))
	c.succeeded = int32(c.completed.len())
	if !limitsIndexes(c.job) {
		return
	}
	for _, p := range c.pods {
		if isTracked(p) && c.counts(p) && c.losesIndex(p) {
			lost = append(lost, indexOf(p))
		}
	}
	if text := c.job.Status.FailedIndexes; text != nil {
		c.lost = parseIndexes(*text, completions(c.job))
	}
	c.lost = c.lost.union(indexesOf(lost))
	c.keep()
}

// losesIndex reports whether the index of a pod has failed for good with this pod.
func (c *census) losesIndex(p *v1.Pod) bool {
	if !isFailed(c.job, p) {
		return false
	}
	g := judge(c.job.Spec.PodFailurePolicy, p)
	counted, _ := failuresBefore(p)
	return g.action == batchv1.PodFailurePolicyActionFailIndex || g.counts() && counted >= *c.job.Spec.BackoffLimitPerIndex
}

// keep finds the pods that wait to be replaced: of each index the one that failed last.
func (c *census) keep() {
	c.kept = map[int]*v1.Pod{}
	settled := c.completed.union(c.lost).union(indexesOf(c.indexesOf(c.active)))
	for _, p := range c.pods {
		if !isTracked(p) || !c.counts(p) || !isFailed(c.job, p) || settled.has(indexOf(p)) {
			continue
		}
		if i := indexOf(p); c.kept[i] == nil || failedAfter(p, c.kept[i]) {
			c.kept[i] = p
		}
	}
}

// failedAfter reports whether of two pods of an index p is the one that failed last.
func failedAfter(p, q *v1.Pod) bool {
	return attempts(p) >= attempts(q) && !endOf(p).Before(endOf(q))
}

// attempts returns how many pods of its index failed before a pod.
func attempts(p *v1.Pod) int64 {
	counted, ignored := failuresBefore(p)
	return int64(counted) + int64(ignored)
}

func (c *census) indexesOf(list []*v1.Pod) []int {
	var out []int
	for _, p := range list {
		if i := indexOf(p); i != noIndex {
			out = append(out, i)
		}
	}
	return out
}
