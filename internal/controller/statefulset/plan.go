package statefulset

import (
	"cmp"
	"iter"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/pods"
)

// burst is how many pods one reconciliation makes at most (a ReplicaSet's value). A set that should have
// a billion must not take the memory for them.
const burst = 500

// facts are all that a plan follows from.
type facts struct {
	set *appsv1.StatefulSet
	// pods are those that it controls. All are members by their names.
	pods []*v1.Pod
	// claim returns the volume claim of a name in its namespace, or nil.
	claim func(name string) *v1.PersistentVolumeClaim
	// current is the revision that the rollout started from, update the one of the set's template.
	current, update revision
	// collisions is how often the name of a new revision was taken.
	collisions *int32
	// backoff is after how long a pod of this name that has ended may be replaced; 0 is at once.
	backoff func(name string) time.Duration
	now     time.Time
}

// revision is one template that the set has or had.
type revision struct {
	name     string
	template *v1.PodTemplateSpec
}

// plan is what has to be done: phase after phase, each only when the one before has succeeded.
type plan struct {
	phases [][]step
	status appsv1.StatefulSetStatus
	// ended are the names of pods that ended and are replaced: the next ones will have to wait longer.
	ended []string
	// recheck is after how long to look again although nothing happened; 0 if never.
	recheck time.Duration
}

// step is what is done for one pod. At most one of create, update and remove is set.
type step struct {
	// pod is the one that it is about; it may have yet to be made.
	pod *v1.Pod
	// newClaims are created before the pod; ownClaims have other owners after it.
	newClaims, ownClaims   []*v1.PersistentVolumeClaim
	create, update, remove *v1.Pod
	// refused is why nothing can be done now.
	refused []error
	// conflicts are claims that somebody else controls.
	conflicts []string
}

// planner takes the decisions.
type planner struct {
	facts
	ordered bool
	// replicas are the pods that there are and should be; condemned are those that are too many. Both
	// begin with the lowest ordinal.
	replicas, condemned []member
	out                 plan
}

type member struct {
	*v1.Pod
	ordinal int
}

// planFor decides what to do for a set. With OrderedReady one pod after the other is made or removed,
// and each waits until all before it are available; with Parallel none waits. Scaling goes before
// updating.
func planFor(f facts) plan {
	p := &planner{facts: f, ordered: f.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement}
	p.sort()
	p.count()
	if f.set.DeletionTimestamp == nil {
		p.decide()
	}
	p.complete()
	return p.out
}

// sort puts each pod in its place.
func (p *planner) sort() {
	for _, pod := range p.pods {
		ordinal, ok := ordinalOf(p.set, pod.Name)
		switch {
		case !ok:
		case wanted(p.set, ordinal):
			p.replicas = append(p.replicas, member{pod, ordinal})
		default:
			p.condemned = append(p.condemned, member{pod, ordinal})
		}
	}
	byOrdinal := func(a, b member) int { return cmp.Compare(a.ordinal, b.ordinal) }
	slices.SortFunc(p.replicas, byOrdinal)
	slices.SortFunc(p.condemned, byOrdinal)
}

// places yields the ordinals that there should be, with the pod that is there or nil. Of those without
// a pod it yields as many as one reconciliation may make.
func (p *planner) places() iter.Seq2[int, *v1.Pod] {
	return func(yield func(int, *v1.Pod) bool) {
		next, end, free := first(p.set), first(p.set)+size(p.set), burst
		gap := func(to int) bool {
			for ; next < to && free > 0; next, free = next+1, free-1 {
				if !yield(next, nil) {
					return false
				}
			}
			return true
		}
		for _, m := range p.replicas {
			if !gap(m.ordinal) || !yield(m.ordinal, m.Pod) {
				return
			}
			next = m.ordinal + 1
		}
		gap(end)
	}
}

func (p *planner) decide() {
	for _, phase := range []func() ([]step, bool){p.keep, p.own, p.scaleDown, p.roll} {
		steps, goOn := phase()
		if len(steps) > 0 {
			p.out.phases = append(p.out.phases, steps)
		}
		if !goOn {
			return
		}
	}
}

// keep makes the pods that are missing, replaces those that ended, and puts identities right.
func (p *planner) keep() (steps []step, goOn bool) {
	for ordinal, pod := range p.places() {
		s, act, wait := p.keepOne(pod, ordinal)
		if act {
			steps = append(steps, s)
		}
		if wait && p.ordered {
			return steps, false
		}
	}
	return steps, true
}

// keepOne decides about one replica: what to do, if anything, and whether the next one has to wait.
func (p *planner) keepOne(pod *v1.Pod, ordinal int) (s step, act, wait bool) {
	if pod == nil {
		s, act = p.make(ordinal)
		return s, act, true
	}
	s.pod = pod
	if pods.IsTerminal(pod.Status.Phase) {
		if pod.DeletionTimestamp == nil {
			p.replace(&s)
		}
		return s, s.remove != nil, true
	}
	act = p.claimsFor(&s, pod, ordinal, pod.Status.Phase == v1.PodPending)
	if p.ordered && p.unavailable(pod) {
		// Until it is available, its claims are all that matters, and those of a pending one only.
		return s, act && pod.Status.Phase == v1.PodPending, true
	}
	s.update = corrected(p.set, pod, ordinal)
	return s, act || s.update != nil, false
}

// replace removes a pod that has ended, so that another one can have its name: only after a while if that
// happens again and again, because a kubelet may refuse each of them.
func (p *planner) replace(s *step) {
	if wait := p.backoff(s.pod.Name); wait > 0 {
		if p.out.recheck == 0 || wait < p.out.recheck {
			p.out.recheck = wait
		}
		return
	}
	s.remove = s.pod
	p.out.ended = append(p.out.ended, s.pod.Name)
}

// make creates a pod, unless a claim that will be deleted is in its way.
func (p *planner) make(ordinal int) (s step, act bool) {
	pod := newPod(p.facts, ordinal)
	if p.stale(pod, ordinal) {
		return s, false
	}
	s.pod, s.create = pod, pod
	p.claimsFor(&s, pod, ordinal, true)
	return s, true
}

// own lets the claims of pods that are too many go with these, if the set says so.
func (p *planner) own() (steps []step, goOn bool) {
	for _, m := range p.condemned {
		s := step{pod: m.Pod}
		if p.claimsFor(&s, m.Pod, m.ordinal, false) {
			steps = append(steps, s)
		}
	}
	return steps, true
}

// scaleDown removes pods that are too many. In order, the highest goes first, and only while all
// others are available: one that is not may go only if it is the lowest of these. One that has ended goes
// in any case: nobody replaces it, and waiting for it would never end (upstream's controller does wait).
func (p *planner) scaleDown() (steps []step, goOn bool) {
	for _, m := range slices.Backward(p.condemned) {
		switch {
		case m.DeletionTimestamp != nil:
			if p.ordered {
				return nil, false
			}
			continue
		case p.ordered && p.mayRecover(m.Pod) && m.Pod != p.firstUnavailable():
			return nil, false
		}
		steps = append(steps, step{pod: m.Pod, remove: m.Pod})
		if p.ordered {
			return steps, false
		}
	}
	return steps, true
}

// firstUnavailable returns the pod with the lowest ordinal that is not available. Those that are too
// many come last. In order, none of the others is unavailable when it is asked for.
func (p *planner) firstUnavailable() *v1.Pod {
	for _, m := range p.condemned {
		if p.unavailable(m.Pod) {
			return m.Pod
		}
	}
	return nil
}

// unavailable reports whether a pod does not count as one that does its work.
func (p *planner) unavailable(pod *v1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase != v1.PodRunning || !pods.IsAvailable(pod, p.set.Spec.MinReadySeconds, p.now)
}

// mayRecover reports whether a pod is unavailable, but need not stay so.
func (p *planner) mayRecover(pod *v1.Pod) bool {
	return p.unavailable(pod) && !pods.IsTerminal(pod.Status.Phase)
}

// roll removes pods of old revisions, the highest ordinal first, so that not more than maxUnavailable
// are unavailable. With Parallel, old ones that are unavailable already go in any case: what makes
// them available may be in the new revision.
func (p *planner) roll() (steps []step, goOn bool) {
	if p.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return nil, true
	}
	budget := maxUnavailable(p.set) - (size(p.set) - len(p.replicas))
	var broken, rest []*v1.Pod
	for _, m := range slices.Backward(p.replicas) {
		unavailable := p.unavailable(m.Pod)
		if unavailable {
			budget--
		}
		switch {
		case m.ordinal-first(p.set) < partition(p.set), revisionOf(m.Pod) == p.update.name:
		case m.DeletionTimestamp != nil, pods.IsTerminal(m.Status.Phase): // it goes already
		case !p.ordered && unavailable:
			broken = append(broken, m.Pod)
		default:
			rest = append(rest, m.Pod)
		}
	}
	for _, pod := range append(broken, rest[:min(len(rest), max(0, budget))]...) {
		steps = append(steps, step{pod: pod, remove: pod})
		if revisionOf(pod) == p.current.name {
			p.out.status.CurrentReplicas--
		}
	}
	return steps, true
}

// maxUnavailable returns how many replicas may be unavailable during an update: one at least.
func maxUnavailable(set *appsv1.StatefulSet) int {
	r := set.Spec.UpdateStrategy.RollingUpdate
	if r == nil {
		return 1
	}
	// The API server has refused what cannot be resolved.
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxUnavailable, intstr.FromInt32(1)), size(set), false)
	if err != nil {
		return 1
	}
	return max(1, n)
}
