package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/pods"
)

const finalizer = batchv1.JobTrackingFinalizer

// withdrawn is the annotation of a pod that lost its finalizer because it was to be deleted without
// being counted. Its value is the pod's UID, which no template can know.
const withdrawn = "wherry.dev/job-withdrawn"

func isIndexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

// mode is the label of metrics for how completions are counted.
func mode(j *batchv1.Job) string {
	if isIndexed(j) {
		return string(batchv1.IndexedCompletion)
	}
	return string(batchv1.NonIndexedCompletion)
}

func isSuspended(j *batchv1.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

// limitsIndexes reports whether each index has a limit of failures of its own.
func limitsIndexes(j *batchv1.Job) bool { return isIndexed(j) && j.Spec.BackoffLimitPerIndex != nil }

// awaitsEnd reports whether a pod that is being deleted is replaced only once it has ended. A policy
// for failures asks for that: it needs to know how the pod ended.
func awaitsEnd(j *batchv1.Job) bool {
	policy := j.Spec.PodReplacementPolicy
	return policy != nil && *policy == batchv1.Failed || j.Spec.PodFailurePolicy != nil
}

// externalManager returns the name of another controller that the job is left to, or "".
func externalManager(j *batchv1.Job) string {
	if m := j.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
		return *m
	}
	return ""
}

// completions is how many completions the job wants, if it says so.
func completions(j *batchv1.Job) int { return int(orZero(j.Spec.Completions)) }

func orZero(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

func conditionOf(st *batchv1.JobStatus, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			return &st.Conditions[i]
		}
	}
	return nil
}

func isTrue(st *batchv1.JobStatus, t batchv1.JobConditionType) bool {
	c := conditionOf(st, t)
	return c != nil && c.Status == v1.ConditionTrue
}

// isFinished reports whether the job has ended, well or not.
func isFinished(j *batchv1.Job) bool {
	return isTrue(&j.Status, batchv1.JobComplete) || isTrue(&j.Status, batchv1.JobFailed)
}

func condition(t batchv1.JobConditionType, reason, message string, now time.Time) *batchv1.JobCondition {
	at := metav1.NewTime(now)
	return &batchv1.JobCondition{
		Type: t, Status: v1.ConditionTrue, Reason: reason, Message: message, LastProbeTime: at, LastTransitionTime: at,
	}
}

// setCondition puts a condition into the status, and reports whether that changed it. One that is
// false only replaces another: without it nothing would be true either.
func setCondition(st *batchv1.JobStatus, c batchv1.JobCondition) bool {
	was := conditionOf(st, c.Type)
	switch {
	case was == nil && c.Status == v1.ConditionFalse:
		return false
	case was == nil:
		st.Conditions = append(st.Conditions, c)
		return true
	case was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message:
		return false
	}
	*was = c
	return true
}

// isTracked reports whether a pod still has to be counted: its finalizer holds it until then.
func isTracked(p *v1.Pod) bool { return slices.Contains(p.Finalizers, finalizer) }

// isFailed reports whether a pod of the job has failed. One that is being deleted has, unless the job
// wants to know how it ends: it may be lost together with its node, and never say.
func isFailed(j *batchv1.Job, p *v1.Pod) bool {
	if p.Status.Phase == v1.PodFailed {
		return true
	}
	return pods.IsTerminating(p) && !awaitsEnd(j)
}

func countReady(list []*v1.Pod) int32 {
	n := int32(0)
	for _, p := range list {
		if _, ready := pods.ReadySince(p); ready {
			n++
		}
	}
	return n
}
