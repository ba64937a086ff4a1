package explain

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/controller/deployment"
)

// DeploymentFacts is what is known about a Deployment.
type DeploymentFacts struct {
	Crowd
	Deployment *appsv1.Deployment
	// Sets that it controls.
	Sets []*appsv1.ReplicaSet
}

// rollout builds the explanation of a Deployment.
type rollout struct {
	findings
	DeploymentFacts
	current  *appsv1.ReplicaSet // nil if there is none
	now, old crowd              // pods of the current ReplicaSet, and of the others
	want     int32
}

// Deployment explains why a rollout is not done.
func Deployment(f DeploymentFacts) Explanation {
	d := f.Deployment
	e := &rollout{findings: newFindings("Deployment", d, f.About), DeploymentFacts: f, want: orOne(d.Spec.Replicas)}
	e.current = deployment.Current(d, f.Sets)
	its := func(p *v1.Pod) bool { return e.current != nil && metav1.IsControlledBy(p, e.current) }
	e.old = sort(slices.DeleteFunc(slices.Clone(f.Pods), its), d.Spec.MinReadySeconds, f.Now)
	e.now = sort(slices.DeleteFunc(slices.Clone(f.Pods), func(p *v1.Pod) bool { return !its(p) }), d.Spec.MinReadySeconds, f.Now)
	if e.deleted(d) {
		return e.out
	}
	have := len(e.now.available) + len(e.old.available)
	e.out.State = fmt.Sprintf("%d/%d available", have, e.want)
	e.since()
	if e.observed(d, d.Status.ObservedGeneration, "deployment controller") {
		e.waits()
	}
	e.conclude(fmt.Sprintf("The rollout is done: %s of the newest template, %d available, %d wanted.",
		count(len(e.now.young)+len(e.now.available), "pod"), len(e.now.available), e.want))
	e.late()
	e.notes()
	return e.out
}

func (e *rollout) since() {
	if c := e.condition(appsv1.DeploymentAvailable); c != nil {
		e.out.Since = report.When(c.LastTransitionTime.Time)
	}
}

func (e *rollout) condition(t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range e.Deployment.Status.Conditions {
		if c := &e.Deployment.Status.Conditions[i]; c.Type == t {
			return c
		}
	}
	return nil
}

// waits says what the rollout waits for: first what keeps pods from being made.
func (e *rollout) waits() {
	if e.paused() || !e.made() {
		return
	}
	failed := e.replicaFailure(e.current)
	if !failed {
		for _, rs := range e.Sets {
			failed = failed || e.replicaFailure(rs)
		}
	}
	if e.recreates() && len(e.now.unready)+len(e.now.young)+len(e.now.available) == 0 {
		e.held(e.old.ending, " of an old template, which has to end first")
	}
	e.held(e.now.unready, " of replica set "+e.current.Name)
	e.growing(e.now.young, e.Deployment.Spec.MinReadySeconds)
	if len(e.out.Waits) == 0 {
		e.missing()
	}
}

func (e *rollout) recreates() bool {
	return e.Deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
}

// paused reports whether the rollout rests, and a template or pods wait for it.
func (e *rollout) paused() bool {
	if !e.Deployment.Spec.Paused {
		return false
	}
	old := len(e.old.unready) + len(e.old.young) + len(e.old.available)
	if e.current != nil && old == 0 {
		e.note("it is paused: a changed template would not be rolled out")
		return false
	}
	w := report.Wait{
		Step: "the end of the pause (spec.paused)", Said: "the newest template is not rolled out while it is paused",
		Next: fmt.Sprintf("kubectl rollout resume -n %s deployment/%s", e.Deployment.Namespace, e.Deployment.Name),
	}
	if c := e.condition(appsv1.DeploymentProgressing); c != nil && c.Reason == "DeploymentPaused" {
		w.Since = report.When(c.LastUpdateTime.Time)
	}
	e.wait(w)
	return true
}

// made reports whether the newest template has its ReplicaSet.
func (e *rollout) made() bool {
	if e.current != nil {
		return true
	}
	w := report.Wait{
		Step: "the replica set of the newest template", Said: "it does not exist yet",
		Next: "the deployment controller creates it",
	}
	if c := e.condition(appsv1.DeploymentProgressing); c != nil && c.Status == v1.ConditionFalse && c.Reason == "ReplicaSetCreateError" {
		w.Since, w.Said = report.When(c.LastUpdateTime.Time), c.Message
		w.Next = "what the message names is put right; the controller retries on its own"
	}
	e.wait(w)
	return false
}

// missing waits for pods that nobody has refused, nor made, and for old ones that still have to go.
func (e *rollout) missing() {
	have := int32(len(e.now.available))
	switch old := slices.Concat(e.old.unready, e.old.young, e.old.available); {
	case have < e.want && e.current.Status.ObservedGeneration < e.current.Generation:
		e.wait(report.Wait{
			Step: "replica set controller", Said: fmt.Sprintf("it has not looked at replica set %s yet", e.current.Name),
			Next: "the controller runs and picks it up",
		})
	case have < e.want:
		e.wait(report.Wait{
			Step: fmt.Sprintf("creation of %s of replica set %s", count(e.want-have, "pod"), e.current.Name), Said: "nothing was refused",
			Next: "the controllers create them, as soon as maxSurge and maxUnavailable allow",
		})
	case len(old) > 0:
		e.wait(report.Wait{
			Step: "end of old " + named(old), Said: "the new pods are available",
			Next: "the controllers delete them",
		})
	}
	if late := overdue(slices.Concat(e.old.ending, e.now.ending), e.Now); len(late) > 0 {
		e.held(late, ", which should have ended")
	}
}

// overdue returns the pods that should be gone already.
func overdue(ending []*v1.Pod, now time.Time) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(ending), func(p *v1.Pod) bool { return now.Before(p.DeletionTimestamp.Time) })
}

// late says that the rollout has exceeded its deadline: a consequence of what it waits for.
func (e *rollout) late() {
	c := e.condition(appsv1.DeploymentProgressing)
	if c == nil || c.Reason != "ProgressDeadlineExceeded" {
		return
	}
	limit := "its deadline"
	if s := e.Deployment.Spec.ProgressDeadlineSeconds; s != nil {
		limit = fmt.Sprintf("%d s", *s)
	}
	e.out.Summary = fmt.Sprintf("It has made no progress for more than %s (ProgressDeadlineExceeded%s). ", limit, ago(report.When(c.LastTransitionTime.Time), e.Now)) + e.out.Summary
	e.note("the deadline stops nothing: the rollout goes on as soon as it can; kubectl rollout undo -n %s deployment/%s goes back",
		e.Deployment.Namespace, e.Deployment.Name)
}

func (e *rollout) notes() {
	if old := slices.Concat(e.old.unready, e.old.young, e.old.available); len(old) > 0 && e.current != nil {
		e.note("%s of an old template: %s%s", count(len(old), "pod"), names(old), e.strategy())
	}
	if ending := slices.Concat(e.old.ending, e.now.ending); len(ending) > 0 {
		e.note("%s ending: %s", map[bool]string{true: "a pod is", false: "pods are"}[len(ending) == 1], names(ending))
	}
	e.now.failures(&e.findings)
	e.budgets(e.Pods, e.Budgets)
}

// strategy says how far old pods make room for new ones.
func (e *rollout) strategy() string {
	r := e.Deployment.Spec.Strategy.RollingUpdate
	if e.recreates() || e.Deployment.Spec.Paused || r == nil || r.MaxSurge == nil || r.MaxUnavailable == nil {
		return ""
	}
	return fmt.Sprintf("; they go as new ones become available (maxUnavailable %s, maxSurge %s)", r.MaxUnavailable, r.MaxSurge)
}

func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
