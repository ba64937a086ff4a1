package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of conditions.
const (
	replicaSetUpdated          = "ReplicaSetUpdated"
	replicaSetCreateError      = "ReplicaSetCreateError"
	newReplicaSetCreated       = "NewReplicaSetCreated"
	foundNewReplicaSet         = "FoundNewReplicaSet"
	newReplicaSetAvailable     = "NewReplicaSetAvailable"
	progressDeadlineExceeded   = "ProgressDeadlineExceeded"
	deploymentPaused           = "DeploymentPaused"
	deploymentResumed          = "DeploymentResumed"
	minimumReplicasAvailable   = "MinimumReplicasAvailable"
	minimumReplicasUnavailable = "MinimumReplicasUnavailable"
)

func find(conditions []appsv1.DeploymentCondition, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}

func (p *planner) progressing() *appsv1.DeploymentCondition {
	return find(p.conditions, appsv1.DeploymentProgressing)
}

func (p *planner) set(t appsv1.DeploymentConditionType, status v1.ConditionStatus, reason, message string) {
	p.conditions = withCondition(p.conditions, appsv1.DeploymentCondition{Type: t, Status: status, Reason: reason, Message: message}, p.now)
}

func (p *planner) drop(t appsv1.DeploymentConditionType) {
	p.conditions = slices.DeleteFunc(slices.Clone(p.conditions), func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}

// withCondition returns conditions with this one, which has its times unless it brings its own. One
// with the same status and reason stays as it is, and the time of the last transition is that of the
// last change of the status.
func withCondition(conditions []appsv1.DeploymentCondition, c appsv1.DeploymentCondition, now time.Time) []appsv1.DeploymentCondition {
	before := find(conditions, c.Type)
	if before != nil && before.Status == c.Status && before.Reason == c.Reason {
		return conditions
	}
	if c.LastUpdateTime.IsZero() {
		c.LastUpdateTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	}
	if before != nil && before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	others := slices.DeleteFunc(slices.Clone(conditions), func(o appsv1.DeploymentCondition) bool { return o.Type == c.Type })
	return append(others, c)
}

func (p *planner) hasDeadline() bool {
	s := p.deployment.Spec.ProgressDeadlineSeconds
	return s != nil && *s != math.MaxInt32
}

// notePause marks the beginning and the end of a pause, whose time does not count against the
// deadline. What has already failed to progress stays so.
func (p *planner) notePause() {
	c := p.progressing()
	if !p.hasDeadline() || c != nil && c.Reason == progressDeadlineExceeded {
		return
	}
	switch noted := c != nil && c.Reason == deploymentPaused; {
	case p.deployment.Spec.Paused && !noted:
		p.set(appsv1.DeploymentProgressing, v1.ConditionUnknown, deploymentPaused, "Deployment is paused")
	case !p.deployment.Spec.Paused && noted:
		p.set(appsv1.DeploymentProgressing, v1.ConditionUnknown, deploymentResumed, "Deployment is resumed")
	}
}

// counts returns the status without a judgement on the rollout's progress.
func (p *planner) counts() appsv1.DeploymentStatus {
	d, all := p.deployment, p.members()
	have := sum(all, available)
	if have >= p.replicas-p.unavailable {
		p.set(appsv1.DeploymentAvailable, v1.ConditionTrue, minimumReplicasAvailable, "Deployment has minimum availability.")
	} else {
		p.set(appsv1.DeploymentAvailable, v1.ConditionFalse, minimumReplicasUnavailable, "Deployment does not have minimum availability.")
	}
	st := appsv1.DeploymentStatus{
		ObservedGeneration:  d.Generation,
		Replicas:            sum(all, func(m *member) int32 { return m.Status.Replicas }),
		ReadyReplicas:       sum(all, func(m *member) int32 { return m.Status.ReadyReplicas }),
		AvailableReplicas:   have,
		UnavailableReplicas: max(0, sum(all, replicas)-have),
		TerminatingReplicas: terminating(all),
		CollisionCount:      d.Status.CollisionCount,
		Conditions:          p.conditions,
	}
	if p.current != nil {
		st.UpdatedReplicas = p.current.Status.Replicas
	}
	return st
}

// terminating adds up what is ending. It is not known if a ReplicaSet that was looked at does not tell.
func terminating(all []*member) *int32 {
	n := int32(0)
	for _, m := range all {
		switch its := m.Status.TerminatingReplicas; {
		case its != nil:
			n += *its
		case m.Status.ObservedGeneration != 0:
			return nil
		}
	}
	return &n
}

// progress returns the status, with what is to be said about the rollout.
func (p *planner) progress() appsv1.DeploymentStatus {
	st := p.counts()
	p.judge(st)
	if c := p.failure(); c != nil {
		p.conditions = withCondition(p.conditions, *c, p.now)
	} else {
		p.drop(appsv1.DeploymentReplicaFailure)
	}
	st.Conditions = p.conditions
	return st
}

// judge sets the condition Progressing. A rollout that was once complete stays so: pods that fail
// later have nothing to do with it.
func (p *planner) judge(st appsv1.DeploymentStatus) {
	d, c := p.deployment, p.progressing()
	what := fmt.Sprintf("Deployment %q", d.Name)
	if p.current != nil {
		what = fmt.Sprintf("ReplicaSet %q", p.current.Name)
	}
	switch {
	case !p.hasDeadline():
		p.drop(appsv1.DeploymentProgressing)
	case c != nil && c.Reason == newReplicaSetAvailable && st.Replicas == st.UpdatedReplicas:
	case complete(d, st):
		p.set(appsv1.DeploymentProgressing, v1.ConditionTrue, newReplicaSetAvailable, what+" has successfully progressed.")
	case moved(d.Status, st):
		since := metav1.NewTime(p.now)
		if c != nil && c.Status == v1.ConditionTrue {
			since = c.LastTransitionTime
		}
		// Each step forward counts, so the condition is made anew even if it says the same.
		p.drop(appsv1.DeploymentProgressing)
		p.conditions = append(p.conditions, appsv1.DeploymentCondition{
			Type: appsv1.DeploymentProgressing, Status: v1.ConditionTrue, Reason: replicaSetUpdated, Message: what + " is progressing.",
			LastUpdateTime: metav1.NewTime(p.now), LastTransitionTime: since,
		})
	case p.timedOut(c):
		p.set(appsv1.DeploymentProgressing, v1.ConditionFalse, progressDeadlineExceeded, what+" has timed out progressing.")
	}
}

// moved reports whether the rollout came forward from one status to the next.
func moved(from, to appsv1.DeploymentStatus) bool {
	return to.UpdatedReplicas > from.UpdatedReplicas ||
		to.Replicas-to.UpdatedReplicas < from.Replicas-from.UpdatedReplicas ||
		to.ReadyReplicas > from.ReadyReplicas ||
		to.AvailableReplicas > from.AvailableReplicas
}

// timedOut reports whether there was no progress for too long. Nothing is known without a condition,
// and a rollout that has succeeded cannot time out any more.
func (p *planner) timedOut(c *appsv1.DeploymentCondition) bool {
	return c != nil && c.Reason != newReplicaSetAvailable && c.Reason != progressDeadlineExceeded && p.limit(c).Before(p.now)
}

// limit returns until when progress has to be made, given when it was made last.
func (p *planner) limit(c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*p.deployment.Spec.ProgressDeadlineSeconds) * time.Second)
}

// deadline returns when to look again whether the rollout has timed out; zero if it cannot.
func (p *planner) deadline(st appsv1.DeploymentStatus) time.Time {
	c := find(st.Conditions, appsv1.DeploymentProgressing)
	if !p.hasDeadline() || c == nil || p.deployment.Spec.Paused || p.deployment.DeletionTimestamp != nil || complete(p.deployment, st) ||
		c.Reason == progressDeadlineExceeded || c.Reason == newReplicaSetAvailable {
		return time.Time{}
	}
	// Times in conditions have no fractions of a second.
	at := p.limit(c).Add(time.Second)
	if soon := p.now.Add(time.Second); at.Before(soon) {
		return soon
	}
	return at
}

// failure returns what a ReplicaSet says about pods that it cannot create or delete: the current one
// before the others.
func (p *planner) failure() *appsv1.DeploymentCondition {
	all := p.old
	if p.current != nil {
		all = slices.Concat([]*member{p.current}, p.old)
	}
	for _, m := range all {
		for _, c := range m.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{
					Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastUpdateTime: c.LastTransitionTime, LastTransitionTime: c.LastTransitionTime,
				}
			}
		}
	}
	return nil
}

// notCreatedStatus returns what to say about a ReplicaSet that could not be created, and the
// Deployment with the condition for it; nil if it has that already, or wants none.
func notCreatedStatus(d *appsv1.Deployment, rs *appsv1.ReplicaSet, err error, now time.Time) (next *appsv1.Deployment, message string) {
	message = fmt.Sprintf("Failed to create new replica set %q: %v", rs.Name, err)
	p := &planner{facts: facts{deployment: d, now: now}, conditions: slices.Clone(d.Status.Conditions)}
	if c := p.progressing(); !p.hasDeadline() || c != nil && c.Status == v1.ConditionFalse && c.Reason == replicaSetCreateError {
		return nil, message
	}
	p.set(appsv1.DeploymentProgressing, v1.ConditionFalse, replicaSetCreateError, message)
	next = d.DeepCopy()
	next.Status.Conditions = p.conditions
	return next, message
}
