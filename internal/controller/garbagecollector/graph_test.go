package garbagecollector

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// id is an object of a kind of v1; its name is its UID, too.
func id(kind, namespace, name string) identity {
	return identity{APIVersion: "v1", Kind: kind, Namespace: namespace, Name: name, UID: types.UID(name)}
}

func ref(to identity) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: to.APIVersion, Kind: to.Kind, Name: to.Name, UID: to.UID}
}

func blockingRef(to identity) metav1.OwnerReference {
	r, yes := ref(to), true
	r.BlockOwnerDeletion = &yes
	return r
}

func object(of identity, owners ...metav1.OwnerReference) facts {
	return facts{identity: of, version: "1", owners: owners}
}

// ending is an object that is being deleted.
func ending(f facts, finalizers ...string) facts {
	f.deleting, f.finalizers = true, finalizers
	return f
}

// under is a reference that says another kind of its owner.
func under(r metav1.OwnerReference, kind string) metav1.OwnerReference {
	r.APIVersion, r.Kind = "v1", kind
	return r
}

const (
	foregroundFinalizer = metav1.FinalizerDeleteDependents
	orphanFinalizer     = metav1.FinalizerOrphanDependents
)

var (
	child  = id("Pod", "a", "child")
	child2 = id("Pod", "a", "child2")
	grand  = id("Pod", "a", "grand")
	parent = id("ReplicaSet", "a", "parent")
	other  = id("ReplicaSet", "a", "other")
	far    = id("ReplicaSet", "b", "far")
	host   = id("Node", "", "host")
	// As a dependent sees its owner: in its own namespace.
	farSeenFromA  = id("ReplicaSet", "a", "far")
	hostSeenFromA = id("Node", "a", "host")
)

// event changes the graph.
type event func(g *graph) changes

func seen(f facts) event { return func(g *graph) changes { return g.observe(f) } }

func gone(i identity) event { return func(g *graph) changes { return g.deleted(i) } }

func missing(asked, resolved identity) event {
	return func(g *graph) changes { return g.notFound(asked, resolved) }
}

type graphCase struct {
	name    string
	events  []event
	check   []identity // what the last event wants looked at, in any order
	later   []identity
	invalid []string         // the last event's invalid references
	next    map[identity]any // a verb, or a step; of the node with the identity's UID
	absent  []identity
	without []identity // have no node
}

var graphCases = []graphCase{
	{
		name:   "an object without owners is left alone",
		events: []event{seen(object(child))},
		next:   map[identity]any{child: nothing},
	},
	{
		name:   "an owner that no watch has told of is verified",
		events: []event{seen(object(child, ref(parent)))},
		check:  []identity{parent}, next: map[identity]any{parent: verify},
	},
	{
		name:   "an owner that is known needs no check",
		events: []event{seen(object(parent)), seen(object(child, ref(parent)))},
		next:   map[identity]any{parent: nothing},
	},
	{
		name:   "an owner is observed after its dependent: nothing to check",
		events: []event{seen(object(child, ref(parent))), seen(object(parent))},
		next:   map[identity]any{parent: nothing},
	},
	{
		name:   "an owner is gone: its dependents are checked, and it is remembered",
		events: []event{seen(object(parent)), seen(object(child, ref(parent))), gone(parent)},
		check:  []identity{child}, next: map[identity]any{child: verify}, absent: []identity{parent}, without: []identity{parent},
	},
	{
		name:    "an object without dependents is gone: nothing is remembered",
		events:  []event{seen(object(parent)), gone(parent)},
		without: []identity{parent},
	},
	{
		name:   "an unknown object is gone",
		events: []event{gone(parent)},
	},
	{
		name:   "a virtual owner does not exist",
		events: []event{seen(object(child, ref(parent))), missing(parent, parent)},
		check:  []identity{child}, next: map[identity]any{child: verify}, absent: []identity{parent}, without: []identity{parent},
	},
	{
		name:   "an observed object does not exist, before its watch tells",
		events: []event{seen(object(parent)), seen(object(child, ref(parent))), missing(parent, parent)},
		check:  []identity{child}, absent: []identity{parent}, without: []identity{parent},
	},
	{
		name:    "nobody refers to a virtual owner any more",
		events:  []event{seen(object(child, ref(parent))), seen(object(child))},
		without: []identity{parent},
	},
	{
		name:    "the last dependent of a virtual owner is gone",
		events:  []event{seen(object(child, ref(parent))), gone(child)},
		without: []identity{parent, child},
	},
	{
		name:   "a deletion that waits for nobody",
		events: []event{seen(object(parent)), seen(object(child, ref(parent))), seen(ending(object(child, ref(parent)), "x/y"))},
		next:   map[identity]any{child: nothing},
	},
	{
		name:   "foreground: the dependents are checked, and the owner waits for those that block",
		events: []event{seen(object(parent)), seen(object(child, blockingRef(parent))), seen(object(child2, ref(parent))), seen(ending(object(parent), foregroundFinalizer))},
		check:  []identity{parent, child, child2},
		next:   map[identity]any{parent: step{verb: await, object: parent, dependents: []identity{child}}},
	},
	{
		name:   "foreground: nothing blocks",
		events: []event{seen(object(parent)), seen(object(child, ref(parent))), seen(ending(object(parent), foregroundFinalizer))},
		check:  []identity{parent, child},
		next:   map[identity]any{parent: step{verb: removeFinalizer, object: parent, finalizer: foregroundFinalizer}},
	},
	{
		name: "foreground: a dependent that waits for its own is not checked again",
		events: []event{
			seen(ending(object(parent), foregroundFinalizer)), seen(ending(object(child, blockingRef(parent)), foregroundFinalizer)),
			seen(object(grand, blockingRef(child))),
		},
		check: []identity{grand},
		next:  map[identity]any{parent: step{verb: await, object: parent}, child: await},
	},
	{
		name:   "foreground: the last dependent is gone",
		events: []event{seen(ending(object(parent), foregroundFinalizer)), seen(object(child, blockingRef(parent))), gone(child)},
		check:  []identity{parent}, next: map[identity]any{parent: removeFinalizer},
	},
	{
		name:   "foreground: a dependent stops blocking",
		events: []event{seen(ending(object(parent), foregroundFinalizer)), seen(object(child, blockingRef(parent))), seen(object(child, ref(parent)))},
		check:  []identity{parent}, next: map[identity]any{parent: removeFinalizer},
	},
	{
		name:   "foreground: a dependent drops its reference",
		events: []event{seen(ending(object(parent), foregroundFinalizer)), seen(object(child, blockingRef(parent))), seen(object(child))},
		check:  []identity{parent}, next: map[identity]any{parent: removeFinalizer},
	},
	{
		name:   "foreground: a dependent appears late",
		events: []event{seen(ending(object(parent), foregroundFinalizer)), seen(object(child, blockingRef(parent)))},
		check:  []identity{child}, next: map[identity]any{parent: await},
	},
	{
		name:   "foreground: the first thing that a watch tells of the owner",
		events: []event{seen(object(child, blockingRef(parent))), seen(ending(object(parent), foregroundFinalizer))},
		check:  []identity{parent, child}, next: map[identity]any{parent: await},
	},
	{
		name:   "foreground: nothing waits for a dependent in another namespace, nor for itself",
		events: []event{seen(ending(object(far, blockingRef(far)), foregroundFinalizer)), seen(object(child, blockingRef(farSeenFromA)))},
		check:  []identity{child}, next: map[identity]any{far: removeFinalizer},
		invalid: []string{`[v1/ReplicaSet, namespace: a, name: far, uid: far]`},
	},
	{
		name: "foreground: two that wait for each other",
		events: []event{
			seen(object(parent, blockingRef(child))), seen(ending(object(child, blockingRef(parent)), foregroundFinalizer)),
			seen(ending(object(parent, blockingRef(child)), foregroundFinalizer)),
		},
		check: []identity{parent, child}, next: map[identity]any{parent: removeFinalizer, child: removeFinalizer},
	},
	{
		name:   "orphan: the dependents lose their references first",
		events: []event{seen(object(parent)), seen(object(child, ref(parent))), seen(ending(object(parent), orphanFinalizer))},
		check:  []identity{parent},
		next:   map[identity]any{parent: step{verb: orphanDependents, object: parent, finalizer: orphanFinalizer, dependents: []identity{child}}, child: verify},
	},
	{
		name:   "orphan goes before foreground, and foreground is not forgotten",
		events: []event{seen(object(parent)), seen(ending(object(parent), orphanFinalizer, foregroundFinalizer)), seen(ending(object(parent), foregroundFinalizer))},
		check:  []identity{parent}, next: map[identity]any{parent: removeFinalizer},
	},
	{
		name:   "a finalizer without a deletion asks for nothing",
		events: []event{seen(facts{identity: parent, finalizers: []string{foregroundFinalizer, orphanFinalizer}})},
		next:   map[identity]any{parent: nothing},
	},
	{
		name:   "an owner without a namespace, dependent first",
		events: []event{seen(object(child, ref(host))), seen(object(host))},
		next:   map[identity]any{host: nothing},
	},
	{
		name:   "an owner without a namespace does not exist: dependents in all namespaces are concerned",
		events: []event{seen(object(child, ref(host))), seen(object(id("Pod", "b", "b"), ref(host))), missing(hostSeenFromA, host)},
		check:  []identity{child, id("Pod", "b", "b")}, absent: []identity{host}, without: []identity{host},
	},
	{
		name:   "an owner in another namespace, owner first",
		events: []event{seen(object(far)), seen(object(child, ref(far)))},
		check:  []identity{child}, invalid: []string{`[v1/ReplicaSet, namespace: a, name: far, uid: far]`},
		next: map[identity]any{far: nothing, child: verify},
	},
	{
		name:   "an owner in another namespace, dependent first",
		events: []event{seen(object(child, ref(far))), seen(object(far))},
		check:  []identity{child}, invalid: []string{`[v1/ReplicaSet, namespace: a, name: far, uid: far]`},
		next: map[identity]any{far: nothing},
	},
	{
		name:   "an owner in another namespace is not there: that says nothing about the real one",
		events: []event{seen(object(child, ref(far))), seen(object(far)), missing(farSeenFromA, farSeenFromA)},
		check:  []identity{child}, absent: []identity{farSeenFromA}, next: map[identity]any{far: nothing},
	},
	{
		name:   "an object without a namespace has an owner with one",
		events: []event{seen(object(parent)), seen(object(host, ref(parent)))},
		check:  []identity{host}, invalid: []string{`[v1/ReplicaSet, namespace: , name: parent, uid: parent]`},
		next: map[identity]any{parent: nothing},
	},
	{
		name:   "an object without a namespace names an owner first: others that name it are verified themselves",
		events: []event{seen(object(host, ref(parent))), seen(object(child, ref(parent)))},
		check:  []identity{child},
	},
	{
		name:   "a reference has the UID of an object of another kind, owner first",
		events: []event{seen(object(parent)), seen(object(child, under(ref(parent), "Secret")))},
		check:  []identity{child}, next: map[identity]any{parent: nothing},
	},
	{
		name:   "a reference has the UID of an object of another kind, dependent first",
		events: []event{seen(object(child, under(ref(parent), "Secret"))), seen(object(child2, ref(parent))), seen(object(parent))},
		check:  []identity{child}, next: map[identity]any{parent: nothing},
	},
	{
		name: "the wrong identity of a virtual owner is absent: it is replaced, and only those who meant it are checked",
		events: []event{
			seen(object(child, under(ref(parent), "AAA"))), seen(object(child2, ref(parent))),
			missing(identity{"v1", "AAA", "a", "parent", "parent"}, identity{"v1", "AAA", "a", "parent", "parent"}),
		},
		check: []identity{child}, later: []identity{parent}, absent: []identity{{"v1", "AAA", "a", "parent", "parent"}},
		next: map[identity]any{parent: step{verb: verify, object: parent}},
	},
	{
		name: "the wrong identity is absent after the owner was observed: the owner stays",
		events: []event{
			seen(object(child, under(ref(parent), "AAA"))), seen(object(child2, ref(parent))), seen(object(parent)),
			missing(identity{"v1", "AAA", "a", "parent", "parent"}, identity{"v1", "AAA", "a", "parent", "parent"}),
		},
		check: []identity{child}, next: map[identity]any{parent: nothing},
	},
	{
		name: "the identities of a virtual owner take turns",
		events: []event{
			seen(object(child, under(ref(parent), "ZZZ"))), seen(object(child2, ref(parent))),
			missing(identity{"v1", "ZZZ", "a", "parent", "parent"}, identity{"v1", "ZZZ", "a", "parent", "parent"}),
		},
		check: []identity{child}, later: []identity{parent}, next: map[identity]any{parent: step{verb: verify, object: parent}},
	},
	{
		name:   "a reference changes to an owner of another name",
		events: []event{seen(object(parent)), seen(object(child, ref(parent))), seen(object(child, under(ref(parent), "Secret")))},
		check:  []identity{child},
	},
	{
		name:   "a reference to another owner is added",
		events: []event{seen(object(parent)), seen(object(child, ref(parent))), seen(object(child, ref(parent), ref(other)))},
		check:  []identity{other},
	},
	{
		name:   "an owner that could not be verified is dropped: the others may be absent",
		events: []event{seen(object(id("Node", "", "other host"))), seen(object(host, ref(parent), ref(id("Node", "", "other host")))), seen(object(host, ref(id("Node", "", "other host"))))},
		check:  []identity{host}, next: map[identity]any{host: verify},
	},
	{
		name:   "an owner that was taken for absent is observed",
		events: []event{seen(object(child, ref(parent))), missing(parent, parent), seen(object(parent))},
		next:   map[identity]any{parent: nothing},
	},
}

func uids(ids []identity) []types.UID {
	var out []types.UID
	for _, i := range ids {
		out = append(out, i.UID)
	}
	slices.Sort(out)
	return out
}

func sorted(in []types.UID) []types.UID {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.Compact(out)
}

func TestGraph(t *testing.T) {
	for _, c := range graphCases {
		t.Run(c.name, func(t *testing.T) {
			g := newGraph()
			var last changes
			for _, e := range c.events {
				last = e(g)
			}
			if got := sorted(last.check); !slices.Equal(got, uids(c.check)) {
				t.Errorf("to check: %v, want %v", got, uids(c.check))
			}
			if got := sorted(last.later); !slices.Equal(got, uids(c.later)) {
				t.Errorf("later: %v, want %v", got, uids(c.later))
			}
			var invalid []string
			for _, r := range last.invalid {
				invalid = append(invalid, r.owner.String())
			}
			if !slices.Equal(invalid, c.invalid) {
				t.Errorf("invalid references: %v, want %v", invalid, c.invalid)
			}
			c.checkRest(t, g)
		})
	}
}

func (c graphCase) checkRest(t *testing.T, g *graph) {
	t.Helper()
	for of, want := range c.next {
		got := g.next(of.UID)
		switch want := want.(type) {
		case verb:
			if got.verb != want {
				t.Errorf("%s: %s, want %s", of.Name, got.verb, want)
			}
		case step:
			if got.verb != want.verb || got.object != want.object || got.finalizer != want.finalizer || !slices.Equal(got.dependents, want.dependents) {
				t.Errorf("%s: %+v, want %+v", of.Name, got, want)
			}
		}
	}
	for _, i := range c.absent {
		if !g.isAbsent(i) {
			t.Errorf("%s is not remembered as absent", i)
		}
	}
	for _, i := range c.without {
		if _, ok := g.nodes[i.UID]; ok {
			t.Errorf("%s has a node", i)
		}
	}
}

func TestAnObservedOwnerIsNotAbsent(t *testing.T) {
	g := newGraph()
	g.knownAbsent(parent)
	g.observe(object(parent))
	if g.isAbsent(parent) {
		t.Error("still taken for absent")
	}
}

func TestStateOfOwner(t *testing.T) {
	again := object(parent)
	again.UID = "later"
	ended, orphans, waits := ending(object(parent), "x/y"), ending(object(parent), orphanFinalizer), ending(object(parent), foregroundFinalizer)
	finalizerOnly := object(parent)
	finalizerOnly.finalizers = []string{foregroundFinalizer}
	alive := object(parent)
	for name, c := range map[string]struct {
		live *facts
		want ownerState
	}{
		"none": {nil, dangling}, "same name, other UID": {&again, dangling}, "exists": {&alive, solid},
		"being deleted": {&ended, solid}, "orphans its dependents": {&orphans, solid},
		"waits for its dependents": {&waits, waiting}, "has the finalizer only": {&finalizerOnly, solid},
	} {
		if got := stateOf(ref(parent), c.live); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestJudge(t *testing.T) {
	has := func(s ownerState, r metav1.OwnerReference) owner { return owner{r, s} }
	withFinalizer := func(f facts, names ...string) facts { f.finalizers = names; return f }
	p, o, h := ref(parent), ref(other), ref(host)
	bp := blockingRef(parent)
	for _, c := range []struct {
		name   string
		others []facts // in the graph, besides live itself
		live   facts
		owners []owner
		verb   verb
		policy metav1.DeletionPropagation
		drop   []types.UID
	}{
		{name: "no owners", live: object(child), verb: nothing},
		{name: "its owner exists", live: object(child, p), owners: []owner{has(solid, p)}, verb: nothing},
		{name: "its owner is absent", live: object(child, p), owners: []owner{has(dangling, p)}, verb: remove, policy: metav1.DeletePropagationBackground},
		{
			name: "all owners are absent", live: object(child, p, o), owners: []owner{has(dangling, p), has(dangling, o)},
			verb: remove, policy: metav1.DeletePropagationBackground,
		},
		{
			name: "an orphan finalizer is honoured", live: withFinalizer(object(child, p), orphanFinalizer, foregroundFinalizer), owners: []owner{has(dangling, p)},
			verb: remove, policy: metav1.DeletePropagationOrphan,
		},
		{
			name: "a foreground finalizer is honoured", live: withFinalizer(object(child, p), foregroundFinalizer), owners: []owner{has(dangling, p)},
			verb: remove, policy: metav1.DeletePropagationForeground,
		},
		{
			name: "one owner is absent, one exists", live: object(child, p, o), owners: []owner{has(dangling, p), has(solid, o)},
			verb: dropReferences, drop: []types.UID{parent.UID},
		},
		{
			name: "one owner waits, one exists", live: object(child, bp, o), owners: []owner{has(waiting, bp), has(solid, o)},
			verb: dropReferences, drop: []types.UID{parent.UID},
		},
		{
			name: "one absent, one waiting, one exists", live: object(child, p, o, h), owners: []owner{has(dangling, p), has(waiting, o), has(solid, h)},
			verb: dropReferences, drop: []types.UID{parent.UID, other.UID},
		},
		{
			name: "the UID that exists is also named wrongly", live: object(child, p, under(p, "Secret")),
			owners: []owner{has(solid, p), has(dangling, under(p, "Secret"))}, verb: nothing,
		},
		{
			name: "its owner waits, it has no dependents", live: object(child, bp), owners: []owner{has(waiting, bp)},
			verb: remove, policy: metav1.DeletePropagationBackground,
		},
		{
			name: "its owner waits, it has dependents", others: []facts{object(grand, ref(child))},
			live: object(child, bp), owners: []owner{has(waiting, bp)}, verb: remove, policy: metav1.DeletePropagationForeground,
		},
		{
			name: "owners are absent and waiting, it has dependents", others: []facts{object(grand, ref(child))},
			live: object(child, bp, o), owners: []owner{has(waiting, bp), has(dangling, o)}, verb: remove, policy: metav1.DeletePropagationForeground,
		},
		{
			name: "a circle of those that wait is opened", others: []facts{ending(object(parent, blockingRef(child)), foregroundFinalizer)},
			live: object(child, bp), owners: []owner{has(waiting, bp)}, verb: unblock, policy: metav1.DeletePropagationForeground,
		},
		{
			name: "a circle that is open", others: []facts{ending(object(parent, blockingRef(child)), foregroundFinalizer)},
			live: object(child, p), owners: []owner{has(waiting, p)}, verb: remove, policy: metav1.DeletePropagationForeground,
		},
		{name: "it is being deleted already", live: ending(object(child, p)), owners: []owner{has(dangling, p)}, verb: nothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGraph()
			g.observe(object(c.live.identity, c.live.owners...))
			for _, f := range c.others {
				g.observe(f)
			}
			s := g.judge(c.live, c.owners)
			if s.verb != c.verb || s.policy != c.policy || !slices.Equal(s.owners, c.drop) {
				t.Errorf("%s %s %v, want %s %s %v", s.verb, s.policy, s.owners, c.verb, c.policy, c.drop)
			}
			if s.object != c.live.identity {
				t.Errorf("of %s", s.object)
			}
		})
	}
}

// Only what a watch has told of, and by the coordinates that it told, is ever deleted.
func TestVirtualNodesAndMismatchesAreNotDeleted(t *testing.T) {
	absent := []owner{{ref(other), dangling}}
	g := newGraph()
	if s := g.judge(object(child, ref(other)), absent); s.verb != nothing {
		t.Errorf("an unknown object: %s", s.verb)
	}
	g.observe(object(child, ref(parent)))
	if s := g.judge(object(parent, ref(other)), absent); s.verb != recheck {
		t.Errorf("a virtual node: %s", s.verb)
	}
	elsewhere := child
	elsewhere.Namespace = "b"
	if s := g.judge(object(elsewhere, ref(other)), absent); s.verb != nothing {
		t.Errorf("other coordinates: %s", s.verb)
	}
}
