package deployment

import (
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
)

// roll takes one step of a rolling update: the current ReplicaSet grows as far as maxSurge lets it;
// if it cannot, old ones shrink as far as maxUnavailable lets them.
func (p *planner) roll() {
	p.ensureCurrent()
	if p.grow() || p.shrink() {
		return
	}
	if complete(p.deployment, p.deployment.Status) {
		p.cleanUp()
	}
}

// grow gives the current ReplicaSet as many replicas as it may have, and reports whether that
// changed anything. One that is just being created has them already.
func (p *planner) grow() bool {
	if p.current.created {
		return false
	}
	if p.current.replicas > p.replicas {
		return p.resize(p.current, p.replicas)
	}
	return p.resize(p.current, p.room())
}

// shrink takes replicas from the old ReplicaSets, and reports whether it did: first those that are
// not available, which costs nobody anything and might never become available (kubernetes#16737),
// then others, as long as enough are available. Replicas of the current one that are not available
// yet do not count: otherwise a rollout of pods that never become ready would eat up the old ones.
func (p *planner) shrink() bool {
	old := withReplicas(p.old)
	atLeast := p.replicas - p.unavailable
	missing := p.current.replicas - p.current.Status.AvailableReplicas
	most := sum(p.members(), replicas) - atLeast - missing
	if most <= 0 {
		return false
	}
	taken := int32(0)
	for _, m := range old {
		if n := min(most-taken, m.replicas-m.Status.AvailableReplicas); n > 0 {
			p.resize(m, m.replicas-n)
			taken += n
		}
	}
	spare := sum(append(slices.Clone(old), p.current), staying) - atLeast
	for _, m := range old {
		if n := min(spare, m.replicas); n > 0 {
			p.resize(m, m.replicas-n)
			spare -= n
			taken += n
		}
	}
	return taken > 0
}

// staying is how many replicas of a ReplicaSet are available and stay so. Its status may still count
// some that it was told to give up; and until its controller has seen its size it tells nothing: it may
// have been told to give some up, and then to make new ones.
func staying(m *member) int32 {
	if !m.observed() {
		return 0
	}
	return min(m.replicas, m.Status.AvailableReplicas)
}

// recreate takes one step of a Recreate: nothing new starts until all that is old has ended.
func (p *planner) recreate() {
	shrunk := false
	for _, m := range p.old {
		shrunk = p.resize(m, 0) || shrunk
	}
	if shrunk || p.oldRuns() {
		return
	}
	p.ensureCurrent()
	p.resize(p.current, p.replicas)
	if complete(p.deployment, p.deployment.Status) {
		p.cleanUp()
	}
}

// oldRuns reports whether a pod of an old ReplicaSet has not ended, or may still come.
func (p *planner) oldRuns() bool { return slices.ContainsFunc(p.old, p.runs) }

// runs reports whether a pod of the ReplicaSet has not ended, or may still come: as long as the ReplicaSet's
// controller has not seen that it wants none any more.
func (p *planner) runs(m *member) bool {
	return m.Status.Replicas > 0 || p.running[m.UID] || !m.observed()
}

// wasScaled reports whether somebody changed the Deployment's size since its ReplicaSets were scaled
// last.
func (p *planner) wasScaled() bool {
	return slices.ContainsFunc(withReplicas(p.members()), func(m *member) bool {
		n, ok := m.number(desiredKey)
		return ok && n != p.replicas
	})
}

// scale brings the ReplicaSets to the Deployment's new size. In the midst of a rollout all of them
// grow and shrink in proportion: if all the new replicas went to the current one, a bad template
// would do more harm. It reports whether it could: with Recreate there is no proportion to keep, and
// going on with the rollout brings the size.
func (p *planner) scale() bool {
	if m, ok := p.onlyOne(); ok {
		if m != nil && !p.tooEarly(m) {
			p.resize(m, p.replicas)
			p.annotateSize(m) // in any case, or it would look scaled for ever
		}
		return true
	}
	if p.saturated() {
		for _, m := range p.old {
			p.resize(m, 0)
		}
		return true
	}
	if !rolling(p.deployment) {
		return false
	}
	p.scaleInProportion()
	return true
}

// tooEarly reports whether a ReplicaSet must not start, not even in a pause, because the strategy is
// Recreate and others still run.
func (p *planner) tooEarly(m *member) bool {
	return !rolling(p.deployment) && m.replicas == 0 &&
		slices.ContainsFunc(p.members(), func(o *member) bool { return o != m && p.runs(o) })
}

// onlyOne returns the ReplicaSet that has all replicas, or is to get them as none has any: nil if
// there is none at all. ok is false if several have replicas.
func (p *planner) onlyOne() (m *member, ok bool) {
	switch with := withReplicas(p.members()); {
	case len(with) == 1:
		return with[0], true
	case len(with) > 1:
		return nil, false
	case p.current != nil:
		return p.current, true
	case len(p.old) > 0:
		return p.old[len(p.old)-1], true
	}
	return nil, true
}

// saturated reports whether the current ReplicaSet has all the replicas, and all are available.
func (p *planner) saturated() bool {
	m := p.current
	if m == nil {
		return false
	}
	desired, ok := m.number(desiredKey)
	return ok && desired == p.replicas && m.replicas == p.replicas && m.Status.AvailableReplicas == p.replicas
}

// scaleInProportion distributes the replicas to add, or to remove, over the ReplicaSets that have
// some, from the largest to the smallest. The largest gets what rounding leaves.
func (p *planner) scaleInProportion() {
	all := withReplicas(p.members())
	allowed := int32(0)
	if p.replicas > 0 {
		allowed = p.replicas + p.surge
	}
	toAdd := allowed - sum(all, replicas)
	if toAdd >= 0 {
		slices.SortFunc(all, bySizeThenNewer)
	} else {
		slices.SortFunc(all, bySizeThenOlder)
	}
	sizes := make([]int32, len(all))
	left := toAdd
	for i, m := range all {
		share := p.share(m)
		if toAdd > 0 {
			share = min(share, left)
		} else {
			share = max(share, left)
		}
		if left == 0 {
			share = 0
		}
		sizes[i] = m.replicas + share
		left -= share
	}
	sizes[0] = max(0, sizes[0]+left)
	for i, m := range all {
		p.resize(m, sizes[i])
		p.annotateSize(m)
	}
}

// share returns by how many replicas a ReplicaSet would grow if it kept its part of the whole. The
// whole is what its annotation says or, should somebody have removed that, the Deployment's status.
func (p *planner) share(m *member) int32 {
	if p.replicas == 0 {
		return -m.replicas
	}
	whole, ok := m.number(maxKey)
	if !ok || whole == 0 {
		whole = p.deployment.Status.Replicas
	}
	if whole == 0 {
		return 0
	}
	size := float64(m.replicas) * float64(p.replicas+p.surge) / float64(whole)
	return int32(math.Round(size)) - m.replicas
}

// complete reports whether, by a status, all replicas have the newest template and are available, and
// no others are left.
func complete(d *appsv1.Deployment, st appsv1.DeploymentStatus) bool {
	n := orOne(d.Spec.Replicas)
	return st.UpdatedReplicas == n && st.Replicas == n && st.AvailableReplicas == n && st.ObservedGeneration >= d.Generation
}
