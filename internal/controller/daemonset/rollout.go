package daemonset

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// roll takes the next step of a rollout. It comes after manage, which has made sure that no node has a
// pod too many.
func (p *planner) roll() {
	desired := 0
	for node, v := range p.verdicts {
		if v.run {
			desired++
			if p.on[node] == nil {
				p.on[node] = nil // counts as a node, although it has no pod
			}
		}
	}
	surge, unavailable := p.limits(desired)
	switch {
	case surge > 0:
		p.rollAhead(desired, surge)
	case unavailable > 0 || desired > 0:
		p.replace(max(1, unavailable))
	}
}

// sides returns the living pods of a node, the new and the old one. It fails if there are more, which
// manage will remove.
func (p *planner) sides(node string) (fresh, old *v1.Pod, ok bool) {
	for _, pod := range p.on[node] {
		side := &old
		if p.updated(pod) {
			side = &fresh
		}
		switch {
		case pod.DeletionTimestamp != nil:
			continue
		case *side != nil:
			return nil, nil, false
		}
		*side = pod
	}
	return fresh, old, true
}

// replace removes old pods, so that not more than so many nodes have none that is available. Those that
// are not available go in any case: manage makes the new ones.
func (p *planner) replace(maxUnavailable int) {
	unavailable := 0
	var broken, candidates []*v1.Pod
	for _, node := range slices.Sorted(maps.Keys(p.on)) {
		fresh, old, ok := p.sides(node)
		switch {
		case !ok, (old == nil) == (fresh == nil):
			unavailable++
		case fresh != nil:
			if !p.available(fresh) {
				unavailable++
			}
		case !p.available(old):
			broken = append(broken, old)
			unavailable++
		default:
			candidates = append(candidates, old)
		}
	}
	p.remove(broken...)
	p.remove(candidates[:min(len(candidates), max(0, maxUnavailable-unavailable))]...)
}

// rollAhead makes new pods beside old ones, and removes these once the new ones are available: not more
// than maxSurge at a time, and where the old one is not available at once. A pod on a node that it is
// not for any more goes only when there are enough elsewhere.
func (p *planner) rollAhead(desired, maxSurge int) {
	surging, available := 0, 0
	var candidates []string
	var misplaced []*v1.Pod
	for _, node := range slices.Sorted(maps.Keys(p.on)) {
		fresh, old, ok := p.sides(node)
		if !ok {
			surging++
			continue
		}
		if counts := old; counts != nil && p.available(counts) || counts == nil && fresh != nil && p.available(fresh) {
			available++
		}
		switch {
		case old == nil:
		case fresh != nil && p.available(fresh):
			p.remove(old)
		case fresh != nil:
			surging++
		case !p.verdicts[node].run && p.available(old):
			misplaced = append(misplaced, old)
		case !p.verdicts[node].run:
			p.remove(old)
		case !p.available(old):
			p.out.create = append(p.out.create, node)
		default:
			candidates = append(candidates, node)
		}
	}
	p.remove(misplaced[:min(len(misplaced), max(0, available-desired))]...)
	p.out.create = append(p.out.create, candidates[:min(len(candidates), max(0, maxSurge-surging))]...)
}
