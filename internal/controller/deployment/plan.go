package deployment

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// facts are all that a plan follows from.
type facts struct {
	deployment *appsv1.Deployment
	// sets are the ReplicaSets that it controls.
	sets []*appsv1.ReplicaSet
	// running has the UIDs of those that have a pod which has not ended. Only Recreate looks at it.
	running map[types.UID]bool
	now     time.Time
}

// plan is what has to be done: the steps in their order, then the status.
type plan struct {
	steps []step
	// status is the Deployment with another status or revision, or nil if it has them already.
	status *appsv1.Deployment
	// recheck is when to look again although nothing happened; zero if never.
	recheck time.Time
}

// step is one request to the API server. Exactly one object is set, unless it is only an event.
type step struct {
	create, update, remove *appsv1.ReplicaSet
	// spec is the Deployment with another spec or other annotations.
	spec *appsv1.Deployment
	// event is sent once the request has succeeded.
	event *event
}

type event struct{ kind, reason, message string }

// planner takes the decisions. It changes members and conditions as it goes on, so that later ones
// see what earlier ones want.
type planner struct {
	facts
	replicas           int32
	surge, unavailable int32 // pods above, and missing from, replicas during a rollout
	conditions         []appsv1.DeploymentCondition
	current            *member   // has the Deployment's template; nil if there is none
	old                []*member // the others, from old to new
	steps              []step
	// revision is the Deployment's number.
	revision string
}

// planFor decides what to do for a Deployment.
func planFor(f facts) plan {
	p := newPlanner(f)
	d := f.deployment
	switch rollback, wanted := rollbackTo(d); {
	case selectsAll(d):
		return p.refuse()
	case d.DeletionTimestamp != nil:
		return p.plan(p.counts())
	case d.Spec.Paused:
		p.notePause()
		p.number()
		p.scale()
		if !wanted {
			p.cleanUp()
		}
		return p.plan(p.counts())
	case wanted:
		p.number()
		p.ensureCurrent()
		return p.rollBack(rollback)
	}
	p.notePause()
	p.number()
	if p.wasScaled() && p.scale() {
		return p.plan(p.counts())
	}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		p.recreate()
	} else {
		p.roll()
	}
	return p.plan(p.progress())
}

func newPlanner(f facts) *planner {
	d := f.deployment
	p := &planner{facts: f, replicas: orOne(d.Spec.Replicas), conditions: slices.Clone(d.Status.Conditions), revision: d.Annotations[revisionKey]}
	if rolling(d) {
		p.surge, p.unavailable = resolve(d.Spec.Strategy.RollingUpdate, p.replicas)
	}
	var all []*member
	for _, rs := range f.sets {
		all = append(all, memberOf(rs))
	}
	slices.SortFunc(all, byAge)
	if i := currentOf(d, all); i >= 0 {
		p.current = all[i]
		all = slices.Delete(all, i, i+1)
	}
	p.old = all
	return p
}

// currentOf returns which member has the Deployment's template, or -1. They are ordered by age: should
// several have it, the oldest is the current one.
func currentOf(d *appsv1.Deployment, all []*member) int {
	return slices.IndexFunc(all, func(m *member) bool { return sameTemplate(&m.Spec.Template, &d.Spec.Template) })
}

// Current returns the ReplicaSet that has the Deployment's template, among those that it controls; nil
// if there is none.
func Current(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) *appsv1.ReplicaSet {
	var all []*member
	for _, rs := range sets {
		all = append(all, memberOf(rs))
	}
	slices.SortFunc(all, byAge)
	if i := currentOf(d, all); i >= 0 {
		return all[i].ReplicaSet
	}
	return nil
}

func rolling(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType
}

// resolve returns maxSurge and maxUnavailable in pods. Percentages of the first are rounded up, of the
// second down. If that leaves no room for any step, one pod may be unavailable. No more can be
// unavailable than there should be.
func resolve(r *appsv1.RollingUpdateDeployment, replicas int32) (surge, unavailable int32) {
	if r == nil {
		r = &appsv1.RollingUpdateDeployment{}
	}
	// The API server has refused what cannot be resolved.
	resolved := func(v *intstr.IntOrString, roundUp bool) int32 {
		n, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), int(replicas), roundUp)
		return int32(n)
	}
	surge, unavailable = resolved(r.MaxSurge, true), resolved(r.MaxUnavailable, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, replicas)
}

// members returns all ReplicaSets, the current one last.
func (p *planner) members() []*member {
	if p.current == nil {
		return p.old
	}
	return append(slices.Clone(p.old), p.current)
}

// plan puts together what was decided.
func (p *planner) plan(st appsv1.DeploymentStatus) plan {
	var out plan
	if m := p.current; m != nil && m.created {
		s := step{create: m.wanted()}
		if m.replicas > 0 {
			s.event = scaled(m, 0)
		}
		out.steps = append(out.steps, s)
	} else if m != nil && m.changed() {
		out.steps = append(out.steps, update(m))
	}
	for _, m := range p.old {
		if m.changed() {
			out.steps = append(out.steps, update(m))
		}
	}
	out.steps = append(out.steps, p.steps...)
	if d := p.deployment; d.Annotations[revisionKey] != p.revision || !equality.Semantic.DeepEqual(d.Status, st) {
		next := d.DeepCopy()
		next.Status = st
		if p.revision != "" {
			next.Annotations = maps.Clone(next.Annotations)
			if next.Annotations == nil {
				next.Annotations = map[string]string{}
			}
			next.Annotations[revisionKey] = p.revision
		}
		out.status = next
	}
	out.recheck = p.deadline(st)
	return out
}

func update(m *member) step {
	s := step{update: m.wanted()}
	if before := orOne(m.Spec.Replicas); before != m.replicas {
		s.event = scaled(m, before)
	}
	return s
}

func scaled(m *member, from int32) *event {
	direction := "up"
	if m.replicas < from {
		direction = "down"
	}
	return &event{v1.EventTypeNormal, "ScalingReplicaSet", fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, m.Name, from, m.replicas)}
}

// selectsAll reports whether the selector is empty. The API server refuses that now.
func selectsAll(d *appsv1.Deployment) bool {
	s := d.Spec.Selector
	return s != nil && len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

func (p *planner) refuse() plan {
	p.steps = append(p.steps, step{event: &event{
		v1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.",
	}})
	p.old, p.current = nil, nil
	st := p.deployment.Status
	st.ObservedGeneration = p.deployment.Generation
	return p.plan(st)
}

// number gives the current ReplicaSet the highest revision, and what else it has from the Deployment.
func (p *planner) number() {
	m := p.current
	if m == nil {
		return
	}
	for k, v := range p.deployment.Annotations {
		if !own(k) {
			m.annotate(k, v)
		}
	}
	m.setRevision(p.lastRevision() + 1)
	m.minReady = p.deployment.Spec.MinReadySeconds
	p.revision = m.annotations[revisionKey]
	if p.hasDeadline() && p.progressing() == nil && !m.created {
		p.set(appsv1.DeploymentProgressing, v1.ConditionTrue, foundNewReplicaSet, fmt.Sprintf("Found new replica set %q", m.Name))
	}
}

// lastRevision returns the highest number of the old ReplicaSets.
func (p *planner) lastRevision() (last int64) {
	for _, m := range p.old {
		if n, ok := m.revision(); ok {
			last = max(last, n)
		}
	}
	return last
}

// ensureCurrent creates the current ReplicaSet if there is none.
func (p *planner) ensureCurrent() {
	if p.current != nil {
		return
	}
	p.current = memberOf(newReplicaSet(p.deployment))
	p.current.created = true
	p.number()
	p.resize(p.current, p.room())
	p.annotateSize(p.current)
	if p.hasDeadline() {
		p.set(appsv1.DeploymentProgressing, v1.ConditionTrue, newReplicaSetCreated, fmt.Sprintf("Created new replica set %q", p.current.Name))
	}
}

// room returns how many replicas the current ReplicaSet may have now. With Recreate it is recreate that
// gives it all of them, and only when nothing old runs.
func (p *planner) room() int32 {
	if !rolling(p.deployment) {
		return p.current.replicas
	}
	have := sum(p.members(), replicas)
	free := max(0, p.replicas+p.surge-have)
	return p.current.replicas + min(free, p.replicas-p.current.replicas)
}

// resize wants another number of replicas, and reports whether it is another one.
func (p *planner) resize(m *member, n int32) bool {
	if m.replicas == n {
		return false
	}
	m.replicas = n
	p.annotateSize(m)
	return true
}

// annotateSize notes on a ReplicaSet what the Deployment's size was when it was scaled.
func (p *planner) annotateSize(m *member) {
	m.annotate(desiredKey, strconv.Itoa(int(p.replicas)))
	m.annotate(maxKey, strconv.Itoa(int(p.replicas+p.surge)))
}

// cleanUp removes the oldest ReplicaSets above the limit. Those that still have pods, or whose controller has not
// looked at them yet, stay. With Recreate that goes for pods that are only ending, too: once their ReplicaSet is gone,
// nobody would know that the next template has to wait for them.
func (p *planner) cleanUp() {
	limit := p.deployment.Spec.RevisionHistoryLimit
	if limit == nil || *limit == math.MaxInt32 {
		return
	}
	alive := slices.DeleteFunc(slices.Clone(p.old), func(m *member) bool { return m.DeletionTimestamp != nil })
	slices.SortFunc(alive, byRevision)
	for _, m := range alive[:max(0, len(alive)-int(*limit))] {
		if m.Status.Replicas == 0 && m.replicas == 0 && orOne(m.Spec.Replicas) == 0 && m.observed() && !p.running[m.UID] {
			p.steps = append(p.steps, step{remove: m.ReplicaSet})
		}
	}
}
