package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
)

const (
	firstDelay = 10 * time.Second // before a failed pod is replaced (upstream's values)
	mostDelay  = 10 * time.Minute
)

// failures are those in a row: what the delay before the next pod follows from.
type failures struct {
	n    int32 // since the last success
	last time.Time
}

// wait returns how long no pod may be created.
func (f failures) wait(now time.Time) time.Duration {
	if f.n == 0 {
		return 0
	}
	delay := firstDelay
	for i := int32(1); i < f.n && delay < mostDelay; i++ {
		delay *= 2
	}
	return max(0, f.last.Add(min(delay, mostDelay)).Sub(now))
}

// BackOff returns how long no pod of a job is created because others have failed, as far as its pods
// tell.
func BackOff(j *batchv1.Job, list []*v1.Pod, now time.Time) time.Duration {
	return remembered(j, list).wait(now)
}

// with adds pods that have ended since. Failures before the last success do not count.
func (f failures) with(succeeded, failed []*v1.Pod) failures {
	var success time.Time
	for _, p := range succeeded {
		success = later(success, endOf(p))
	}
	if len(succeeded) > 0 {
		f = failures{}
	}
	for _, p := range failed {
		if at := endOf(p); len(succeeded) == 0 || at.After(success) {
			f = failures{f.n + 1, later(f.last, at)}
		}
	}
	return f
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// remembered returns the failures that the pods of a job tell of which are counted already. It is for
// a controller that has just started: nothing else remembers them.
func remembered(j *batchv1.Job, list []*v1.Pod) failures {
	uncounted := uncountedOf(&j.Status)
	var succeeded, failed []*v1.Pod
	for _, p := range list {
		switch {
		case isTracked(p) && !uncounted[p.UID]:
		case p.Status.Phase == v1.PodSucceeded:
			succeeded = append(succeeded, p)
		case isFailed(j, p):
			failed = append(failed, p)
		}
	}
	return failures{}.with(succeeded, failed)
}

// endOf returns when a pod ended: when its last container did; or when it ceased to be ready, as the
// kubelet says at a pod's end; or when its deletion was asked for. A pod that tells nothing of this
// ended when it was created.
func endOf(p *v1.Pod) time.Time {
	if t, ok := lastExit(p); ok {
		return t
	}
	c := pods.FindCondition(&p.Status, v1.PodReady)
	switch {
	case c != nil && c.Status == v1.ConditionFalse && !c.LastTransitionTime.IsZero():
		return c.LastTransitionTime.Time
	case p.DeletionTimestamp != nil:
		grace := int64(0)
		if g := p.DeletionGracePeriodSeconds; g != nil {
			grace = *g
		}
		return p.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	}
	return p.CreationTimestamp.Time
}

// lastExit returns when the last container ended, sidecars among them, if all have.
func lastExit(p *v1.Pod) (last time.Time, ok bool) {
	isSidecar := func(name string) bool {
		return slices.ContainsFunc(p.Spec.InitContainers, func(c v1.Container) bool {
			return c.Name == name && pods.IsSidecar(&c)
		})
	}
	statuses := slices.Clone(p.Status.ContainerStatuses)
	for _, c := range p.Status.InitContainerStatuses {
		if isSidecar(c.Name) {
			statuses = append(statuses, c)
		}
	}
	for _, c := range statuses {
		end := c.State.Terminated
		if end == nil || end.FinishedAt.IsZero() {
			return time.Time{}, false
		}
		last = later(last, end.FinishedAt.Time)
	}
	return last, len(statuses) > 0
}
