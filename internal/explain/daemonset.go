package explain

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/controller/daemonset"
)

// DaemonSetFacts is what is known about a DaemonSet.
type DaemonSetFacts struct {
	Crowd
	Set *appsv1.DaemonSet
	// Nodes of the cluster; NodesUnread if they may not be read.
	Nodes       []*v1.Node
	NodesUnread bool
}

// DaemonSet explains why a DaemonSet does not have its pod on each of its nodes.
func DaemonSet(f DaemonSetFacts) Explanation {
	ds := f.Set
	e := newFindings("DaemonSet", ds, f.About)
	if e.deleted(ds) {
		return e.out
	}
	c, want := sort(f.Pods, ds.Spec.MinReadySeconds, f.Now), int(ds.Status.DesiredNumberScheduled)
	e.out.State = fmt.Sprintf("%d/%d available", len(c.available), want)
	if e.observed(ds, ds.Status.ObservedGeneration, "daemon set controller") {
		f.missing(&e)
		e.held(c.unready, "")
		e.growing(c.young, ds.Spec.MinReadySeconds)
		f.update(&e)
	}
	done := fmt.Sprintf("It is complete: %d available on %s that it is for.", len(c.available), count(want, "node"))
	if want == 0 {
		done = "It wants no pods: none of the nodes is one that they may run on."
	}
	e.conclude(done)
	f.others(&e)
	if n := ds.Status.NumberMisscheduled; n > 0 {
		e.note("%s on nodes that it is not for: they are deleted", count(n, "pod"))
	}
	if len(c.ending) > 0 {
		e.note("ending: %s", names(c.ending))
	}
	c.failures(&e)
	e.budgets(f.Pods, f.Budgets)
	return e.out
}

// missing waits for pods on nodes that have none.
func (f *DaemonSetFacts) missing(e *findings) {
	has := map[string]bool{}
	for _, p := range f.Pods {
		if node, ok := daemonset.NodeOf(p); ok {
			has[node] = true
		}
	}
	var without []string
	for _, n := range f.Nodes {
		if !has[n.Name] && daemonset.RunsOn(f.Set, n) {
			without = append(without, n.Name)
		}
	}
	if len(without) == 0 {
		return
	}
	step := "creation of a pod on each of the nodes " + listed(without)
	if len(without) == 1 {
		step = "creation of a pod on node " + without[0]
	}
	if e.failedCreate(f.Pods) {
		e.out.Waits[len(e.out.Waits)-1].Step = step
		return
	}
	e.wait(report.Wait{Step: step, Said: "nothing was refused", Next: "the daemon set controller creates it"})
}

// update waits for pods of an old template.
func (f *DaemonSetFacts) update(e *findings) {
	st := f.Set.Status
	if st.UpdatedNumberScheduled >= st.DesiredNumberScheduled {
		return
	}
	w := report.Wait{
		Step: "update of " + count(st.DesiredNumberScheduled-st.UpdatedNumberScheduled, "pod"), Said: "not of the newest template yet",
		Next: "the daemon set controller replaces them, as soon as maxUnavailable and maxSurge allow",
	}
	if f.Set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		w.Next = "somebody deletes them: the update strategy is OnDelete"
	}
	e.wait(w)
}

// others notes the nodes that it is not for.
func (f *DaemonSetFacts) others(e *findings) {
	var not []string
	for _, n := range f.Nodes {
		if !daemonset.RunsOn(f.Set, n) {
			not = append(not, n.Name)
		}
	}
	if len(not) > 0 && !f.NodesUnread {
		e.note("it is not for %s, by nodeSelector, affinity or taints: %s", count(len(not), "node"), listed(not))
	}
}
