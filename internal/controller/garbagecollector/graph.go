package garbagecollector

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// identity says which object is meant. A reference to an owner has no namespace: the dependent's
// one is taken for it until the owner's kind is known to have none.
type identity struct {
	APIVersion, Kind, Namespace, Name string
	UID                               types.UID
}

// String is what upstream writes into events.
func (i identity) String() string {
	return fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", i.APIVersion, i.Kind, i.Namespace, i.Name, i.UID)
}

func ownerIdentity(ref metav1.OwnerReference, namespace string) identity {
	return identity{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: namespace, Name: ref.Name, UID: ref.UID}
}

// means reports whether a reference has the object's coordinates, its namespace apart.
func means(ref metav1.OwnerReference, id identity) bool {
	return ownerIdentity(ref, id.Namespace) == id
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// facts are what counts of an object in a certain version.
type facts struct {
	identity
	version    string
	owners     []metav1.OwnerReference
	deleting   bool
	finalizers []string
}

func (f *facts) has(finalizer string) bool { return slices.Contains(f.finalizers, finalizer) }

// mode is what the object's finalizers ask for while it is being deleted.
func (f *facts) mode() mode {
	switch {
	case !f.deleting:
		return alive
	case f.has(metav1.FinalizerOrphanDependents):
		return orphaning
	case f.has(metav1.FinalizerDeleteDependents):
		return foreground
	default:
		return leaving
	}
}

type mode string

const (
	alive      mode = "alive"
	orphaning  mode = "orphaning"  // waits until its dependents have lost their references to it
	foreground mode = "foreground" // waits until the dependents that block its deletion are gone
	leaving    mode = "leaving"    // waits for others
)

// node is an object in the graph. A virtual one is known from references only: whether it exists,
// and its coordinates, are guesses.
type node struct {
	identity
	virtual bool
	owners  []metav1.OwnerReference
	mode    mode
}

// graph knows which object depends on which. It is pure: the events of watches change it, and it
// says what to do next. It may be behind the API server, and events of different kinds come in any
// order, so that what it says of a deletion is to be verified first.
type graph struct {
	nodes map[types.UID]*node
	// dependents has the observed objects that refer to a UID, whether it has a node or not.
	dependents map[types.UID]map[types.UID]struct{}
	// absent has identities that the API server did not know. UIDs do not come back.
	absent *lru.Cache
}

// absentOwners is how many identities of absent owners are remembered.
const absentOwners = 500

func newGraph() *graph {
	return &graph{
		nodes:      map[types.UID]*node{},
		dependents: map[types.UID]map[types.UID]struct{}{},
		absent:     lru.New(absentOwners),
	}
}

// changes are what follows from an event.
type changes struct {
	check   []types.UID // to be looked at now
	later   []types.UID // to be looked at after a while
	invalid []invalidReference
}

// invalidReference is a reference to an owner that is in another namespace.
type invalidReference struct {
	dependent identity
	owner     identity // as the dependent sees it
}

// observe takes in an object that was added or changed.
func (g *graph) observe(f facts) changes {
	var out changes
	n, known := g.nodes[f.UID]
	if !known || n.virtual {
		n = &node{identity: f.identity, mode: alive}
		g.nodes[f.UID] = n
		g.absent.Remove(f.identity)
		g.mistaken(n, &out)
	}
	g.relink(n, f.owners, &out)
	if m := f.mode(); m != n.mode {
		n.mode = m
		if m == foreground {
			out.check = append(out.check, g.dependentsOf(n.UID)...)
		}
		if m == foreground || m == orphaning {
			out.check = append(out.check, n.UID)
		}
	}
	return out
}

// mistaken looks for dependents that took an object, which is now observed, for another one.
func (g *graph) mistaken(n *node, out *changes) {
	_, others := g.divide(n.identity)
	for _, dep := range others {
		d := g.nodes[dep]
		if n.Namespace != "" && d.Namespace != n.Namespace {
			g.reportInvalid(d, n.UID, out)
		}
		out.check = append(out.check, dep)
	}
}

func (g *graph) reportInvalid(dependent *node, owner types.UID, out *changes) {
	for _, ref := range dependent.owners {
		if ref.UID == owner {
			out.invalid = append(out.invalid, invalidReference{dependent.identity, ownerIdentity(ref, dependent.Namespace)})
			return
		}
	}
}

// relink replaces the references of n.
func (g *graph) relink(n *node, owners []metav1.OwnerReference, out *changes) {
	old := n.owners
	n.owners = slices.Clone(owners)
	for _, was := range old {
		refersTo := func(r metav1.OwnerReference) bool { return r.UID == was.UID }
		if blocks(was) && !slices.ContainsFunc(n.owners, func(r metav1.OwnerReference) bool { return refersTo(r) && blocks(r) }) {
			out.check = append(out.check, was.UID) // it may have waited for this
		}
		if !slices.ContainsFunc(n.owners, refersTo) {
			g.unlink(n.UID, was.UID)
			if len(n.owners) > 0 {
				out.check = append(out.check, n.UID) // what could not be verified may have kept it
			}
		}
	}
	for _, ref := range n.owners {
		same := func(r metav1.OwnerReference) bool { return ownerIdentity(r, "") == ownerIdentity(ref, "") }
		if !slices.ContainsFunc(old, same) {
			g.link(n, ref, out)
		}
	}
}

func (g *graph) link(n *node, ref metav1.OwnerReference, out *changes) {
	if g.dependents[ref.UID] == nil {
		g.dependents[ref.UID] = map[types.UID]struct{}{}
	}
	g.dependents[ref.UID][n.UID] = struct{}{}
	owner, known := g.nodes[ref.UID]
	switch {
	case !known:
		g.nodes[ref.UID] = &node{identity: ownerIdentity(ref, n.Namespace), virtual: true, mode: alive}
		out.check = append(out.check, ref.UID)
	case owner.Namespace != "" && owner.Namespace != n.Namespace:
		if !owner.virtual {
			g.reportInvalid(n, ref.UID, out)
		}
		out.check = append(out.check, n.UID)
	case !means(ref, owner.identity):
		out.check = append(out.check, n.UID)
	case owner.virtual && owner.Namespace == "" && n.Namespace != "":
		// An object without a namespace named this owner first, perhaps one that has a namespace.
		out.check = append(out.check, n.UID)
	case owner.mode == foreground:
		out.check = append(out.check, n.UID)
	}
}

func (g *graph) unlink(dependent, owner types.UID) {
	delete(g.dependents[owner], dependent)
	if len(g.dependents[owner]) > 0 {
		return
	}
	delete(g.dependents, owner)
	if n, ok := g.nodes[owner]; ok && n.virtual {
		delete(g.nodes, owner) // nobody asks for it any more
	}
}

// deleted takes in that an observed object is gone.
func (g *graph) deleted(id identity) changes {
	var out changes
	if n, ok := g.nodes[id.UID]; ok {
		g.forget(n, id, &out)
	}
	return out
}

// forget removes a node that turned out to be absent under the identity id.
func (g *graph) forget(n *node, id identity, out *changes) {
	if deps := g.dependentsOf(n.UID); len(deps) > 0 {
		g.absent.Add(id, nil)
		out.check = append(out.check, deps...)
	}
	g.leave(n, out)
}

// leave removes a node and its references. Who waits for it looks again.
func (g *graph) leave(n *node, out *changes) {
	delete(g.nodes, n.UID)
	for _, ref := range n.owners {
		g.unlink(n.UID, ref.UID)
		if owner, ok := g.nodes[ref.UID]; ok && owner.mode == foreground {
			out.check = append(out.check, ref.UID)
		}
	}
}

// served takes in that kinds are served which were not: owners and dependents of them could not be verified.
func (g *graph) served(kinds map[schema.GroupVersionKind]bool) changes {
	var out changes
	for _, uid := range slices.Sorted(maps.Keys(g.nodes)) {
		n := g.nodes[uid]
		is := func(r metav1.OwnerReference) bool { return kinds[schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)] }
		if n.virtual && kinds[schema.FromAPIVersionAndKind(n.APIVersion, n.Kind)] || slices.ContainsFunc(n.owners, is) {
			out.check = append(out.check, uid)
		}
	}
	return out
}

// vanished takes in that the objects of a kind are not followed any more: no event will tell of them, and
// they block nothing. For their dependents they are what only references tell of.
func (g *graph) vanished(kind schema.GroupVersionKind) changes {
	var out changes
	version, name := kind.ToAPIVersionAndKind()
	for _, uid := range slices.Sorted(maps.Keys(g.nodes)) {
		n, ok := g.nodes[uid] // it may have gone with its last dependent
		if !ok || n.virtual || n.APIVersion != version || n.Kind != name {
			continue
		}
		g.leave(n, &out)
		if len(g.dependents[uid]) > 0 {
			g.nodes[uid] = &node{identity: n.identity, virtual: true, mode: alive}
			out.check = append(out.check, uid)
		}
	}
	return out
}

// notFound takes in that the API server does not know the object that a node stands for. asked is
// the identity of the node when the API server was asked; resolved is the one that it was asked
// for, without a namespace if the kind has none.
func (g *graph) notFound(asked, resolved identity) changes {
	var out changes
	n, ok := g.nodes[asked.UID]
	if !ok {
		return out
	}
	if !n.virtual && n.identity == asked {
		g.forget(n, resolved, &out)
		return out
	}
	same, others := g.divide(resolved)
	if n.virtual && len(others) == 0 {
		g.forget(n, resolved, &out)
		return out
	}
	// Somebody knows this UID under other coordinates: only those who meant these are concerned.
	if len(same) > 0 {
		g.absent.Add(resolved, nil)
		out.check = append(out.check, same...)
	}
	if n.virtual && n.identity == asked {
		if next, ok := g.otherIdentity(others, resolved); ok {
			n.identity = next
			out.later = append(out.later, n.UID)
		}
	}
	return out
}

// knownAbsent remembers an owner that the API server does not know.
func (g *graph) knownAbsent(id identity) { g.absent.Add(id, nil) }

func (g *graph) isAbsent(id identity) bool {
	_, ok := g.absent.Get(id)
	return ok
}

func (g *graph) dependentsOf(uid types.UID) []types.UID {
	out := make([]types.UID, 0, len(g.dependents[uid]))
	for dep := range g.dependents[uid] {
		out = append(out, dep)
	}
	slices.Sort(out)
	return out
}

// divide returns the dependents that mean exactly this owner, and those that know its UID under
// other coordinates. One with several references can be both.
func (g *graph) divide(owner identity) (same, others []types.UID) {
	for _, dep := range g.dependentsOf(owner.UID) {
		d := g.nodes[dep]
		if owner.Namespace != "" && owner.Namespace != d.Namespace {
			others = append(others, dep)
			continue
		}
		var match, mismatch bool
		for _, ref := range d.owners {
			if ref.UID == owner.UID {
				match = match || means(ref, owner)
				mismatch = mismatch || !means(ref, owner)
			}
		}
		if match {
			same = append(same, dep)
		}
		if mismatch {
			others = append(others, dep)
		}
	}
	return same, others
}

// otherIdentity returns the identity under which dependents know the owner, other than the one that
// is absent: the next one in order, or else the first one, so that all get their turn.
func (g *graph) otherIdentity(dependents []types.UID, absent identity) (identity, bool) {
	var all []identity
	for _, dep := range dependents {
		d := g.nodes[dep]
		for _, ref := range d.owners {
			if ref.UID != absent.UID || means(ref, absent) && (absent.Namespace == "" || absent.Namespace == d.Namespace) {
				continue
			}
			id := ownerIdentity(ref, d.Namespace)
			if absent.Namespace == "" && id.APIVersion == absent.APIVersion && id.Kind == absent.Kind {
				id.Namespace = "" // as the absent one shows, the kind has none
			}
			all = append(all, id)
		}
	}
	if len(all) == 0 {
		return identity{}, false
	}
	slices.SortFunc(all, compare)
	for _, id := range all {
		if compare(id, absent) > 0 {
			return id, true
		}
	}
	return all[0], true
}
