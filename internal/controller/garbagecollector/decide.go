package garbagecollector

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// verb is what is to be done with an object.
type verb string

const (
	nothing          verb = "nothing"
	verify           verb = "verify" // get it and its owners from the API server, then judge
	recheck          verb = "recheck"
	remove           verb = "delete"
	dropReferences   verb = "drop references"
	unblock          verb = "unblock" // make its references non-blocking, then look again
	removeFinalizer  verb = "remove finalizer"
	orphanDependents verb = "orphan dependents" // then remove its finalizer
	await            verb = "await"             // blocking dependents go first
)

// step is the next thing to do for an object.
type step struct {
	verb       verb
	object     identity
	live       facts // of what is verified: what the step was decided on
	policy     metav1.DeletionPropagation
	owners     []types.UID // references to these are dropped
	finalizer  string
	dependents []identity // to be orphaned, or to be looked at since they block
}

// next says what to do for a UID by what is known.
func (g *graph) next(uid types.UID) step {
	n, ok := g.nodes[uid]
	if !ok {
		return step{verb: nothing}
	}
	s := step{verb: nothing, object: n.identity}
	switch {
	case n.mode == orphaning:
		s.verb, s.finalizer = orphanDependents, metav1.FinalizerOrphanDependents
		for _, dep := range g.dependentsOf(uid) {
			s.dependents = append(s.dependents, g.nodes[dep].identity)
		}
	case n.mode == foreground:
		g.nextForeground(n, &s)
	case n.virtual, n.mode == alive && len(n.owners) > 0:
		s.verb = verify
	}
	return s
}

func (g *graph) nextForeground(n *node, s *step) {
	blocked := false
	for _, dep := range g.dependentsOf(n.UID) {
		d := g.nodes[dep]
		if !blocking(d, n) || g.waitsFor(d, n.UID, map[types.UID]bool{}) {
			continue // in a circle of those that wait, somebody has to go first
		}
		blocked = true
		if d.mode != foreground { // that one waits for its own
			s.dependents = append(s.dependents, d.identity)
		}
	}
	if blocked {
		s.verb = await
		return
	}
	s.verb, s.finalizer = removeFinalizer, metav1.FinalizerDeleteDependents
}

// waitsFor reports whether a node, in the foreground, waits for the one with the UID, through
// whatever others.
func (g *graph) waitsFor(n *node, uid types.UID, visited map[types.UID]bool) bool {
	if n.mode != foreground || visited[n.UID] {
		return false
	}
	visited[n.UID] = true
	for dep := range g.dependents[n.UID] {
		d := g.nodes[dep]
		if blocking(d, n) && (dep == uid || g.waitsFor(d, uid, visited)) {
			return true
		}
	}
	return false
}

// blocking reports whether the dependent blocks the deletion of the owner. What is in another
// namespace, or in none, cannot refer to an owner with a namespace, and nothing waits for itself.
func blocking(dependent, owner *node) bool {
	if dependent.UID == owner.UID || owner.Namespace != "" && dependent.Namespace != owner.Namespace {
		return false
	}
	return slices.ContainsFunc(dependent.owners, func(ref metav1.OwnerReference) bool {
		return ref.UID == owner.UID && blocks(ref)
	})
}

// ownerState is what the API server says of an owner.
type ownerState string

const (
	solid    ownerState = "solid"    // exists
	dangling ownerState = "dangling" // does not exist
	waiting  ownerState = "waiting"  // exists, but waits for its dependents to be deleted
)

// owner is one reference of an object, with what the API server says of it.
type owner struct {
	ref   metav1.OwnerReference
	state ownerState
}

// stateOf returns the state of an owner by what the API server has under its name; nil if nothing.
func stateOf(ref metav1.OwnerReference, live *facts) ownerState {
	switch {
	case live == nil || live.UID != ref.UID:
		return dangling
	case live.deleting && live.has(metav1.FinalizerDeleteDependents):
		return waiting
	default:
		return solid
	}
}

// judge says what to do with an object of which the API server has told the latest version and all
// owners.
func (g *graph) judge(live facts, owners []owner) step {
	s := step{verb: nothing, object: live.identity, live: live}
	n, ok := g.nodes[live.UID]
	switch {
	case !ok:
		return s
	case n.virtual:
		s.verb = recheck // a watch will tell of it, or it is gone before that
		return s
	case n.identity != live.identity, live.deleting, len(owners) == 0:
		return s
	}
	has := func(st ownerState) bool {
		return slices.ContainsFunc(owners, func(o owner) bool { return o.state == st })
	}
	switch {
	case has(solid):
		if s.owners = withoutSolid(owners); len(s.owners) > 0 {
			s.verb = dropReferences
		}
	case has(waiting) && len(g.dependents[live.UID]) > 0:
		s.verb, s.policy = remove, metav1.DeletePropagationForeground
		if slices.ContainsFunc(live.owners, blocks) && g.inCircle(live.UID) {
			s.verb = unblock
		}
	default:
		s.verb, s.policy = remove, policyOf(live)
	}
	return s
}

// withoutSolid returns the owners that do not hold an object which others hold. An owner that waits
// is among them: it would wait for ever.
func withoutSolid(owners []owner) []types.UID {
	var keep, drop []types.UID
	for _, o := range owners {
		if o.state == solid {
			keep = append(keep, o.ref.UID)
		}
	}
	for _, o := range owners {
		if !slices.Contains(keep, o.ref.UID) && !slices.Contains(drop, o.ref.UID) {
			drop = append(drop, o.ref.UID)
		}
	}
	return drop
}

// inCircle reports whether a dependent waits for its own dependents, one of which the object may
// be. It is no proof; a reference that blocks nothing any more is the only harm.
func (g *graph) inCircle(uid types.UID) bool {
	for dep := range g.dependents[uid] {
		if g.nodes[dep].mode == foreground {
			return true
		}
	}
	return false
}

// policyOf returns the policy that the object's finalizers already ask for.
func policyOf(f facts) metav1.DeletionPropagation {
	switch {
	case f.has(metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case f.has(metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	default:
		return metav1.DeletePropagationBackground
	}
}

// sameGrounds reports whether a decision that was made on a still holds for b.
func sameGrounds(a, b facts) bool {
	return a.identity == b.identity && a.deleting == b.deleting && slices.Equal(a.finalizers, b.finalizers) &&
		slices.EqualFunc(a.owners, b.owners, func(x, y metav1.OwnerReference) bool {
			return ownerIdentity(x, "") == ownerIdentity(y, "") && blocks(x) == blocks(y)
		})
}

// compare orders identities by kind first.
func compare(a, b identity) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.APIVersion, b.APIVersion),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}
