package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/report"
	"wherry.dev/internal/controller/statefulset"
)

// StatefulSetFacts is what is known about a StatefulSet.
type StatefulSetFacts struct {
	Crowd
	Set *appsv1.StatefulSet
}

// ordinals builds the explanation of a StatefulSet.
type ordinals struct {
	findings
	StatefulSetFacts
	lowest, size int // the ordinals that it wants; there may be very many
	keepOld      int // below this ordinal pods keep the old revision
	byOrdinal    map[int]*v1.Pod
	extra        []*v1.Pod // beyond those that it wants
	have         int       // pods that are available
}

// StatefulSet explains why a StatefulSet is not complete, or not updated.
func StatefulSet(f StatefulSetFacts) Explanation {
	s := f.Set
	e := &ordinals{findings: newFindings("StatefulSet", s, f.About), StatefulSetFacts: f, byOrdinal: map[int]*v1.Pod{}}
	if e.deleted(s) {
		return e.out
	}
	e.lowest, e.size, e.keepOld = statefulset.Range(s)
	for _, p := range f.Pods {
		ordinal, _, wanted := statefulset.Ordinal(s, p)
		if !wanted {
			e.extra = append(e.extra, p)
			continue
		}
		e.byOrdinal[ordinal] = p
		if e.isAvailable(p) {
			e.have++
		}
	}
	e.out.State = fmt.Sprintf("%d/%d available", e.have, e.size)
	if e.observed(s, s.Status.ObservedGeneration, "stateful set controller") {
		e.waits()
	}
	e.conclude(fmt.Sprintf("It is complete: %d available, %d wanted%s.", e.have, e.size, e.partition()))
	e.budgets(f.Pods, f.Budgets)
	return e.out
}

func (e *ordinals) isAvailable(p *v1.Pod) bool {
	return p.DeletionTimestamp == nil && !pods.IsTerminal(p.Status.Phase) && pods.IsAvailable(p, e.Set.Spec.MinReadySeconds, e.about.Now)
}

func (e *ordinals) ordered() bool {
	return e.Set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// waits says what the set waits for. In order, it is the lowest ordinal that is not available.
func (e *ordinals) waits() {
	if ordinal, ok := e.lowestUnavailable(); ok && e.ordered() {
		e.first(e.byOrdinal[ordinal], ordinal)
		e.later(ordinal)
		return
	}
	minReady := e.Set.Spec.MinReadySeconds
	its := e.wanted()
	c := sort(its, minReady, e.about.Now)
	if n := e.size - len(its); n > 0 {
		e.create("creation of "+e.missing(n, e.lowest), its)
	}
	e.held(slices.Concat(c.unready, c.ending), "")
	e.growing(c.young, minReady)
	e.update()
	e.surplus()
}

// lowestUnavailable ends at the first pod that does not exist.
func (e *ordinals) lowestUnavailable() (ordinal int, ok bool) {
	for i := range e.size {
		p := e.byOrdinal[e.lowest+i]
		if p == nil || !e.isAvailable(p) {
			return e.lowest + i, true
		}
	}
	return 0, false
}

// missing names the first of the n pods that do not exist from an ordinal on.
func (e *ordinals) missing(n, from int) string {
	const most = 3
	var out []string
	for i := from; len(out) < min(n, most); i++ {
		if e.byOrdinal[i] == nil {
			out = append(out, statefulset.PodName(e.Set, i))
		}
	}
	if n > most {
		return fmt.Sprintf("%d pods (%s, …)", n, strings.Join(out, ", "))
	}
	return count(n, "pod") + " (" + strings.Join(out, ", ") + ")"
}

// wanted returns the pods that the set wants and has, by ordinal.
func (e *ordinals) wanted() (out []*v1.Pod) {
	for _, ordinal := range slices.Sorted(maps.Keys(e.byOrdinal)) {
		out = append(out, e.byOrdinal[ordinal])
	}
	return out
}

// first explains the replica that the others wait for.
func (e *ordinals) first(p *v1.Pod, ordinal int) {
	name := statefulset.PodName(e.Set, ordinal)
	if p == nil {
		e.create("creation of pod "+name, e.Pods)
		return
	}
	c := sort([]*v1.Pod{p}, e.Set.Spec.MinReadySeconds, e.about.Now)
	e.held(c.unready, "")
	e.growing(c.young, e.Set.Spec.MinReadySeconds)
	e.held(c.ending, ", whose name its successor needs")
	if len(c.ended) > 0 {
		e.wait(report.Wait{
			Step: "replacement of pod " + name, Said: "it has ended: " + string(p.Status.Phase) + report.Details(p.Status.Reason, p.Status.Message),
			Next: "the stateful set controller deletes it and makes it anew",
		})
	}
	if len(c.unready) > 0 && e.isOld(p) {
		e.note("pod %s is of an old revision, and in order the set does not replace it before it is ready; if it never will be: kubectl delete pod -n %s %s",
			name, p.Namespace, name)
	}
}

// later notes what the order keeps waiting for the pod with the ordinal.
func (e *ordinals) later(ordinal int) {
	n := e.size - len(e.byOrdinal)
	if e.byOrdinal[ordinal] == nil {
		n--
	}
	if n > 0 {
		e.note("not created before %s is available (podManagementPolicy OrderedReady): %s",
			statefulset.PodName(e.Set, ordinal), e.missing(n, ordinal+1))
	}
	if len(e.extra) > 0 {
		e.note("too many, and deleted in order only: %s", names(e.extra))
	}
}

// create waits for pods that do not exist.
func (e *ordinals) create(step string, its []*v1.Pod) {
	if e.failedCreate(its) {
		e.out.Waits[len(e.out.Waits)-1].Step = step
		return
	}
	e.wait(report.Wait{Step: step, Said: "nothing was refused", Next: "the stateful set controller creates them"})
}

func (e *ordinals) isOld(p *v1.Pod) bool {
	return e.Set.Status.UpdateRevision != "" && p.Labels[appsv1.StatefulSetRevisionLabel] != e.Set.Status.UpdateRevision
}

// old returns pods of an old revision: those that are to be replaced, and those that are to stay.
func (e *ordinals) old() (replaced, kept []*v1.Pod) {
	for _, p := range e.wanted() {
		switch ordinal, _, _ := statefulset.Ordinal(e.Set, p); {
		case !e.isOld(p):
		case ordinal < e.keepOld:
			kept = append(kept, p)
		default:
			replaced = append(replaced, p)
		}
	}
	return replaced, kept
}

// update waits for pods that have to be replaced by those of the newest revision.
func (e *ordinals) update() {
	old, _ := e.old()
	if len(old) == 0 {
		return
	}
	w := report.Wait{
		Step: "update of " + named(old), Said: "of an old revision; the newest is " + e.Set.Status.UpdateRevision,
		Next: "the stateful set controller replaces them, the highest ordinal first",
	}
	if e.Set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		w.Next = "somebody deletes them: the update strategy is OnDelete"
	}
	e.wait(w)
}

// surplus waits for pods that are too many.
func (e *ordinals) surplus() {
	if len(e.extra) == 0 {
		return
	}
	if c := sort(e.extra, 0, e.about.Now); len(c.ending) > 0 {
		e.held(c.ending, ", one too many")
		return
	}
	e.wait(report.Wait{
		Step: "end of " + named(e.extra), Said: fmt.Sprintf("only %d are wanted", e.size),
		Next: "the stateful set controller deletes them, the highest ordinal first",
	})
}

// partition says how far an update goes.
func (e *ordinals) partition() string {
	if _, kept := e.old(); len(kept) > 0 {
		return fmt.Sprintf("; %s the old revision, below the partition (%d)",
			named(kept)+map[bool]string{true: " keeps", false: " keep"}[len(kept) == 1], e.keepOld)
	}
	return ""
}
