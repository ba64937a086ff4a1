package replicaset

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"wherry.dev/internal/api/pods"
)

// facts are what a set's status follows from, besides the set itself.
type facts struct {
	active, terminating []*v1.Pod
	// failure is why the number of pods could not be changed, or nil.
	failure error
}

// statusOf returns the status of a set. What is terminating is counted only for kinds that tell it.
func statusOf(s set, k kind, f facts, now time.Time) appsv1.ReplicaSetStatus {
	st := appsv1.ReplicaSetStatus{
		Replicas:           int32(len(f.active)),
		ObservedGeneration: s.GetGeneration(),
		Conditions:         conditions(s, f, now),
	}
	if k.terminating {
		st.TerminatingReplicas = new(int32(len(f.terminating)))
	}
	full := labels.SelectorFromSet(s.template.Labels)
	for _, p := range f.active {
		if full.Matches(labels.Set(p.Labels)) {
			st.FullyLabeledReplicas++
		}
		if _, ready := pods.ReadySince(p); ready {
			st.ReadyReplicas++
		}
		if pods.IsAvailable(p, s.minReady, now) {
			st.AvailableReplicas++
		}
	}
	return st
}

// conditions keeps a failure that was reported before: the first one counts, until none is left.
func conditions(s set, f facts, now time.Time) []appsv1.ReplicaSetCondition {
	isFailure := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	before := s.status.Conditions
	switch known := slices.ContainsFunc(before, isFailure); {
	case f.failure == nil && known:
		return slices.DeleteFunc(slices.Clone(before), isFailure)
	case f.failure == nil || known:
		return before
	}
	reason := "FailedCreate"
	if len(f.active) > int(s.replicas) {
		reason = "FailedDelete"
	}
	return append(slices.Clone(before), appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: v1.ConditionTrue, Reason: reason, Message: f.failure.Error(),
		LastTransitionTime: metav1.NewTime(now),
	})
}

// nextAvailable returns after how long the next pod becomes available just because time passes, or 0.
func nextAvailable(s set, active []*v1.Pod, now time.Time) time.Duration {
	var next time.Duration
	for _, p := range active {
		if wait, ever := pods.AvailableIn(p, s.minReady, now); ever && wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	return next
}
