package daemonset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/pods"
)

// burst is how many pods one reconciliation creates, and how many it deletes, at most (upstream's
// value).
const burst = 250

// facts are all that a plan follows from.
type facts struct {
	ds *appsv1.DaemonSet
	// pods are those that it controls; nodes are all that there are.
	pods  []*v1.Pod
	nodes []*v1.Node
	// hash is that of the revision of its template.
	hash string
	// backoff is after how long a failed pod on a node may be replaced; 0 is at once.
	backoff func(node string) time.Duration
	now     time.Time
}

// plan is what has to be done.
type plan struct {
	// create has the nodes that get a pod, of the revision with the hash.
	create []string
	hash   string
	remove []*v1.Pod
	// failed are nodes whose failed pod is replaced: the next one will have to wait longer.
	failed []string
	events []event
	status appsv1.DaemonSetStatus
	// recheck is after how long to look again although nothing happened; 0 if never.
	recheck time.Duration
}

type event struct{ kind, reason, message string }

// planner takes the decisions.
type planner struct {
	facts
	verdicts map[string]verdict
	on       map[string][]*v1.Pod // the pods by node, the one that counts first
	out      plan
}

// planFor decides what to do for a DaemonSet. Only when each node has what it should have, a rollout
// goes on.
func planFor(f facts) plan {
	p := &planner{facts: f, verdicts: map[string]verdict{}, on: map[string][]*v1.Pod{}, out: plan{hash: f.hash}}
	j := newJudge(f.ds)
	for _, n := range f.nodes {
		p.verdicts[n.Name] = j.of(n)
	}
	p.sort()
	p.manage()
	if len(p.out.create)+len(p.out.remove) == 0 && f.ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		p.roll()
	}
	p.count()
	p.out.create = p.out.create[:min(len(p.out.create), burst)]
	p.out.remove = p.out.remove[:min(len(p.out.remove), burst)]
	return p.out
}

// sort puts each pod on its node. One that ended and is being deleted is over.
func (p *planner) sort() {
	for _, pod := range p.pods {
		if pods.IsTerminal(pod.Status.Phase) && pod.DeletionTimestamp != nil {
			continue
		}
		if node, ok := nodeOf(pod); ok {
			p.on[node] = append(p.on[node], pod)
		}
	}
	for _, its := range p.on {
		slices.SortFunc(its, byAge)
	}
}

// byAge orders pods that are bound before others, then the old before the new.
func byAge(a, b *v1.Pod) int {
	unbound := func(p *v1.Pod) int {
		if p.Spec.NodeName == "" {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(unbound(a), unbound(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// names returns the nodes that there are in one order.
func (p *planner) names() []string { return slices.Sorted(maps.Keys(p.verdicts)) }

// manage gives each node one pod or none.
func (p *planner) manage() {
	for _, node := range p.names() {
		v, its := p.verdicts[node], p.on[node]
		switch {
		case v.run && len(its) == 0:
			p.out.create = append(p.out.create, node)
		case v.stay:
			living, waiting := p.living(node)
			p.prune(node, living, v.run && !waiting)
		default:
			p.remove(its...)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(p.on)) {
		if _, exists := p.verdicts[node]; exists {
			continue
		}
		for _, pod := range p.on[node] {
			if pod.Spec.NodeName == "" { // it waits for a node that is gone
				p.remove(pod)
			}
		}
	}
}

// remove removes pods, unless they are being deleted.
func (p *planner) remove(list ...*v1.Pod) {
	for _, pod := range list {
		if pod.DeletionTimestamp == nil {
			p.out.remove = append(p.out.remove, pod)
		}
	}
}

// living returns the pods of a node that have not ended, and are not being deleted. It removes those
// that have: a failed one only after a while, because the kubelet may refuse the next one, too.
// Until then the node waits.
func (p *planner) living(node string) (out []*v1.Pod, waiting bool) {
	for _, pod := range p.on[node] {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == v1.PodFailed:
			if wait := p.backoff(node); wait > 0 {
				p.recheckIn(wait)
				waiting = true
				continue
			}
			p.tell(v1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it", pod, node)
			p.out.failed = append(p.out.failed, node)
			p.remove(pod)
		case pod.Status.Phase == v1.PodSucceeded:
			p.tell(v1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod, node)
			p.remove(pod)
		default:
			out = append(out, pod)
		}
	}
	return out, waiting
}

func (p *planner) tell(kind, reason, format string, pod *v1.Pod, node string) {
	p.out.events = append(p.out.events, event{kind, reason, fmt.Sprintf(format, pod.Namespace, pod.Name, node)})
}

func (p *planner) recheckIn(d time.Duration) {
	if p.out.recheck == 0 || d < p.out.recheck {
		p.out.recheck = d
	}
}

// prune leaves one of a node's living pods or, with maxSurge, one of each side of the rollout.
func (p *planner) prune(node string, living []*v1.Pod, run bool) {
	if !p.surges() {
		p.remove(living[min(1, len(living)):]...)
		return
	}
	if len(living) == 0 && run {
		// One that is being deleted does not count: surging means that there is always one.
		p.out.create = append(p.out.create, node)
		return
	}
	if len(living) < 2 {
		return
	}
	var fresh, old *v1.Pod
	for _, pod := range living {
		switch isNew := pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == p.hash; {
		case isNew && fresh == nil:
			fresh = pod
		case !isNew && old == nil:
			old = pod
		default:
			p.remove(pod)
		}
	}
	if fresh == nil || old == nil {
		return
	}
	if _, ready := pods.ReadySince(old); !ready || p.available(fresh) {
		p.remove(old)
	}
}

func (p *planner) surges() bool {
	surge, _ := p.limits(1)
	return surge > 0
}

// available reports whether a pod does its work, and notes when one that is ready will.
func (p *planner) available(pod *v1.Pod) bool {
	wait, ever := pods.AvailableIn(pod, p.ds.Spec.MinReadySeconds, p.now)
	if ever && wait > 0 {
		p.recheckIn(wait)
	}
	return ever && wait == 0
}

// limits returns maxSurge and maxUnavailable in pods, if there should be n. Percentages are rounded up.
// What cannot be resolved has been refused by the API server.
func (p *planner) limits(n int) (surge, unavailable int) {
	r := p.ds.Spec.UpdateStrategy.RollingUpdate
	if p.ds.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || r == nil {
		return 0, 0
	}
	resolved := func(v *intstr.IntOrString) int {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), n, true)
		if err != nil {
			return 0
		}
		return n
	}
	return resolved(r.MaxSurge), resolved(r.MaxUnavailable)
}

// updated reports whether a pod is of the template's revision.
func (p *planner) updated(pod *v1.Pod) bool {
	n, ok := generation(p.ds)
	return pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == p.hash || ok && pod.Labels[templateGenerationKey] == strconv.FormatInt(n, 10)
}

// count sets the status.
func (p *planner) count() {
	st := p.ds.Status
	st.ObservedGeneration = p.ds.Generation
	st.DesiredNumberScheduled, st.CurrentNumberScheduled, st.NumberMisscheduled = 0, 0, 0
	st.NumberReady, st.UpdatedNumberScheduled, st.NumberAvailable = 0, 0, 0
	for node, v := range p.verdicts {
		its := p.on[node]
		switch {
		case !v.run && len(its) > 0:
			st.NumberMisscheduled++
		case v.run:
			st.DesiredNumberScheduled++
		}
		if !v.run || len(its) == 0 {
			continue
		}
		st.CurrentNumberScheduled++
		if _, ready := pods.ReadySince(its[0]); ready {
			st.NumberReady++
		}
		if p.available(its[0]) {
			st.NumberAvailable++
		}
		if p.updated(its[0]) {
			st.UpdatedNumberScheduled++
		}
	}
	st.NumberUnavailable = st.DesiredNumberScheduled - st.NumberAvailable
	p.out.status = st
}
