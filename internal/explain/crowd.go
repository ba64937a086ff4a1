package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
)

// Crowd is what is known about the pods of a workload.
type Crowd struct {
	About
	// Pods that the workload controls, directly or through others.
	Pods []*v1.Pod
	// Budgets of the namespace.
	Budgets []policyv1.PodDisruptionBudget
}

// crowd sorts the pods of a workload by what can be said of them.
type crowd struct {
	ending, ended, unready, young, available []*v1.Pod
}

// sort sorts pods that count as available after minReady seconds.
func sort(list []*v1.Pod, minReady int32, now time.Time) (c crowd) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b *v1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for _, p := range list {
		_, ready := pods.ReadySince(p)
		switch {
		case pods.IsTerminal(p.Status.Phase):
			c.ended = append(c.ended, p)
		case p.DeletionTimestamp != nil:
			c.ending = append(c.ending, p)
		case !ready:
			c.unready = append(c.unready, p)
		case !pods.IsAvailable(p, minReady, now):
			c.young = append(c.young, p)
		default:
			c.available = append(c.available, p)
		}
	}
	return c
}

// names returns the names of pods, most of them counted only if there are many.
func names(list []*v1.Pod) string {
	var out []string
	for _, p := range list {
		out = append(out, p.Name)
	}
	return listed(out)
}

// named is like names, with the word before it.
func named(list []*v1.Pod) string {
	if len(list) == 1 {
		return "pod " + list[0].Name
	}
	return "pods " + names(list)
}

// held waits for pods that are not ready: one wait for each state that they are in. The first pod
// of each is asked for. of says whose they are.
func (e *findings) held(list []*v1.Pod, of string) {
	byState := map[string][]*v1.Pod{}
	var order []string
	for _, p := range list {
		s := state(p, &p.Status)
		if p.DeletionTimestamp != nil {
			s = "Terminating"
		}
		if byState[s] == nil {
			order = append(order, s)
		}
		byState[s] = append(byState[s], p)
	}
	for _, s := range order {
		e.heldIn(s, byState[s], of)
	}
}

func (e *findings) heldIn(state string, list []*v1.Pod, of string) {
	w := report.Wait{Step: named(list[:1]) + of, Since: notReadySince(list), Said: state, Next: "it is ready"}
	if len(list) > 1 {
		w.Step = count(len(list), "pod") + of
		w.Said, w.Next = state+": "+names(list), "they are ready"
	}
	if state == "Terminating" {
		w.Next = "nothing is left of " + map[bool]string{true: "it", false: "them"}[len(list) == 1]
	}
	if len(e.out.ask) < mostAsked {
		e.out.ask = append(e.out.ask, list[0])
		w.Next += fmt.Sprintf("; below is what pod %s waits for", list[0].Name)
	}
	e.wait(w)
}

// notReadySince returns since when the first of the pods is not ready.
func notReadySince(list []*v1.Pod) *time.Time {
	var first time.Time
	for _, p := range list {
		at := p.CreationTimestamp.Time
		if c := pods.FindCondition(&p.Status, v1.PodReady); c != nil && !c.LastTransitionTime.IsZero() {
			at = c.LastTransitionTime.Time
		}
		if p.DeletionTimestamp != nil {
			at = p.DeletionTimestamp.Time
			if g := p.DeletionGracePeriodSeconds; g != nil {
				at = at.Add(-time.Duration(*g) * time.Second)
			}
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return report.When(first)
}

// growing waits for pods that are ready, but not for long enough yet.
func (e *findings) growing(young []*v1.Pod, minReady int32) {
	if len(young) == 0 {
		return
	}
	var first, last time.Time
	for _, p := range young {
		since, _ := pods.ReadySince(p)
		if first.IsZero() || since.Before(first) {
			first = since
		}
		if since.After(last) {
			last = since
		}
	}
	until := last.Add(time.Duration(minReady) * time.Second)
	e.wait(report.Wait{
		Step: "minReadySeconds of " + named(young), Since: report.When(first),
		Said: fmt.Sprintf("ready, and available only after %d s of that", minReady),
		Next: fmt.Sprintf("nothing makes them unready until %s", until.UTC().Format("15:04:05 UTC")),
	})
}

// failures says which pods have ended in failure, and why the first did.
func (c *crowd) failures(e *findings) {
	failed := slices.DeleteFunc(slices.Clone(c.ended), func(p *v1.Pod) bool { return p.Status.Phase != v1.PodFailed })
	if len(failed) > 0 {
		p := failed[len(failed)-1]
		e.note("%s failed: %s; the newest%s", count(len(failed), "pod"), names(failed), report.Details(p.Status.Reason, p.Status.Message))
	}
}

// budgets notes which budgets let no pod be evicted now.
func (e *findings) budgets(list []*v1.Pod, all []policyv1.PodDisruptionBudget) {
	for i := range all {
		b := &all[i]
		if b.Status.DisruptionsAllowed > 0 || b.Status.ExpectedPods == 0 {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !slices.ContainsFunc(list, func(p *v1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) }) {
			continue
		}
		e.note("budget %s lets none of its pods be evicted now (kubectl drain waits): %d of %d are healthy, %d have to be",
			b.Name, b.Status.CurrentHealthy, b.Status.ExpectedPods, b.Status.DesiredHealthy)
	}
}

// refused waits for pods that cannot be created, by what the API server said to that.
func (e *findings) refused(step string, since *time.Time, message string) {
	next := "what the message names is put right; the controller retries on its own"
	switch {
	case strings.Contains(message, "exceeded quota"):
		next = "the quota is raised, or others in the namespace use less of it; the controller retries on its own"
	case strings.Contains(message, "failed quota"):
		next = "the pods' containers say what the quota limits (resources.requests and limits), or a LimitRange gives defaults"
	}
	e.wait(report.Wait{Step: step, Since: since, Said: message, Next: next})
}

// replicaFailure waits for what a ReplicaSet says that it cannot create or delete.
func (e *findings) replicaFailure(rs *appsv1.ReplicaSet) bool {
	for _, c := range rs.Status.Conditions {
		if c.Type != appsv1.ReplicaSetReplicaFailure || c.Status != v1.ConditionTrue {
			continue
		}
		step := "creation of pods of replica set " + rs.Name
		if c.Reason == "FailedDelete" {
			step = "deletion of pods of replica set " + rs.Name
		}
		e.refused(step, report.When(c.LastTransitionTime.Time), c.Message)
		return true
	}
	return false
}

// failedCreate waits for pods whose creation was refused since the newest of the pods was made, by
// the events of the object.
func (e *findings) failedCreate(list []*v1.Pod) bool {
	ev := e.event("FailedCreate", "", "")
	if ev == nil {
		return false
	}
	for _, p := range list {
		if p.CreationTimestamp.After(eventTime(ev)) {
			return false
		}
	}
	e.refused("creation of its pods", report.When(eventTime(ev)), ev.Message)
	return true
}
