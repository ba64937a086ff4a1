package garbagecollector

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// world is an API server in memory, with a watch of its own for each object: events of one object
// stay in order, those of several do not. It knows what may never happen.
type world struct {
	t       *testing.T
	rand    *rand.Rand
	objects map[identity]*facts // by coordinates, without UID
	events  map[types.UID][]event
	queue   map[types.UID]bool
	exec    *executor
	version int
	uids    int
	calm    bool // no failures any more
	history []string
	sick    bool // says one thing only
}

var errFlaky = fmt.Errorf("the request failed")

func place(i identity) identity { i.UID = ""; return i }

func (w *world) log(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	if !w.sick {
		w.sick = true
		w.t.Errorf("%s\nhistory:\n%s", fmt.Sprintf(format, args...), strings.Join(w.history, "\n"))
	}
}

func (w *world) chance(p float64) bool { return !w.calm && w.rand.Float64() < p }

// changed gives the object a new version, and tells of it. Now and then a watch that was interrupted
// misses a version.
func (w *world) changed(o *facts) {
	w.version++
	o.version = fmt.Sprint(w.version)
	f := copyOf(o)
	pending := w.events[o.UID]
	if len(pending) > 1 && w.chance(0.2) {
		pending = pending[:len(pending)-1] // a later version tells the same
	}
	w.events[o.UID] = append(pending, func(g *graph) changes { return g.observe(f) })
}

func copyOf(o *facts) facts {
	f := *o
	f.owners, f.finalizers = slices.Clone(o.owners), slices.Clone(o.finalizers)
	return f
}

func (w *world) drop(o *facts) {
	w.log("gone %s", o.Name)
	delete(w.objects, place(o.identity))
	id := o.identity
	if w.chance(0.2) {
		w.events[o.UID] = nil // what a watch missed in between
	}
	w.events[o.UID] = append(w.events[o.UID], func(g *graph) changes { return g.deleted(id) })
}

// finish removes an object that nothing holds any more.
func (w *world) finish(o *facts) {
	if o.deleting && len(o.finalizers) == 0 {
		w.drop(o)
		return
	}
	w.changed(o)
}

func (w *world) destroy(o *facts, policy metav1.DeletionPropagation) {
	w.log("delete %s %s", o.Name, policy)
	gc := func(f string) bool { return f == orphanFinalizer || f == foregroundFinalizer }
	o.finalizers = slices.DeleteFunc(o.finalizers, gc)
	switch policy {
	case metav1.DeletePropagationForeground:
		o.finalizers = append(o.finalizers, foregroundFinalizer)
	case metav1.DeletePropagationOrphan:
		o.finalizers = append(o.finalizers, orphanFinalizer)
	}
	o.deleting = true
	w.finish(o)
}

// state is what is true of a reference, by the rules.
func (w *world) state(r metav1.OwnerReference, namespace string) ownerState {
	id := ownerIdentity(r, namespace)
	if id.Kind == "Node" {
		id.Namespace = ""
	}
	return stateOf(r, w.objects[place(id)])
}

func (w *world) held(o *facts) bool {
	return slices.ContainsFunc(o.owners, func(r metav1.OwnerReference) bool { return w.hopeless(r) || w.state(r, o.Namespace) == solid })
}

// hopeless is a reference that nobody can verify: a kind that is not served.
func (w *world) hopeless(r metav1.OwnerReference) bool { return r.Kind == "Alien" }

func (w *world) flaky() error {
	if w.chance(0.1) {
		return errFlaky
	}
	return nil
}

func (w *world) resolve(i identity) (identity, error) {
	switch {
	case i.Kind == "Alien":
		return i, errNotServed
	case i.Kind == "Node":
		i.Namespace = ""
	case i.Namespace == "":
		return i, errNoNamespace
	}
	return i, nil
}

func (w *world) get(_ context.Context, i identity) (facts, error) {
	if err := w.flaky(); err != nil {
		return facts{}, err
	}
	o, ok := w.objects[place(i)]
	if !ok {
		return facts{}, errAbsent
	}
	out := copyOf(o)
	if w.chance(0.2) {
		w.act() // somebody comes in between
	}
	return out, nil
}

func (w *world) find(i identity) (*facts, error) {
	if err := w.flaky(); err != nil {
		return nil, err
	}
	o, ok := w.objects[place(i)]
	if !ok {
		return nil, errAbsent
	}
	if o.UID != i.UID {
		return nil, errChanged
	}
	return o, nil
}

func (w *world) delete(_ context.Context, live facts, policy metav1.DeletionPropagation) error {
	o, err := w.find(live.identity)
	if err != nil {
		return err
	}
	if o.version != live.version {
		return errChanged
	}
	if len(o.owners) == 0 || w.held(o) {
		w.fail("deleted %s, which nothing condemns", o.identity)
	}
	w.log("the collector: ")
	w.destroy(o, policy)
	return nil
}

func (w *world) dropReferences(_ context.Context, i identity, owners []types.UID) error {
	o, err := w.find(i)
	if err != nil {
		return err
	}
	before := len(o.owners)
	o.owners = slices.DeleteFunc(o.owners, func(r metav1.OwnerReference) bool { return slices.Contains(owners, r.UID) })
	if len(o.owners) != before {
		w.log("the collector frees %s of %v", o.Name, owners)
		w.changed(o)
	}
	return nil
}

func (w *world) unblockReferences(_ context.Context, live facts) error {
	o, err := w.find(live.identity)
	if err != nil {
		return err
	}
	if o.version != live.version {
		return errChanged
	}
	for i := range o.owners {
		o.owners[i].BlockOwnerDeletion = nil
	}
	w.log("the collector unblocks %s", o.Name)
	w.changed(o)
	return nil
}

func (w *world) removeFinalizer(_ context.Context, live facts, finalizer string) error {
	o, err := w.find(live.identity)
	if err != nil {
		return err
	}
	if o.version != live.version {
		return errChanged
	}
	o.finalizers = slices.DeleteFunc(o.finalizers, func(f string) bool { return f == finalizer })
	w.log("the collector takes %s from %s", finalizer, o.Name)
	w.finish(o)
	return nil
}

// some returns an object, in a stable order of choice.
func (w *world) some() *facts {
	var all []*facts
	for _, o := range w.objects {
		all = append(all, o)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *facts) int { return compare(a.identity, b.identity) })
	return all[w.rand.IntN(len(all))]
}

// reference is one to an object, most of the time a right one.
func (w *world) reference(dependent *facts) (metav1.OwnerReference, bool) {
	to := w.some()
	if to == nil || to.UID == dependent.UID {
		return metav1.OwnerReference{}, false
	}
	r := ref(to.identity)
	yes := w.rand.IntN(2) == 0
	r.BlockOwnerDeletion = &yes
	switch p := w.rand.Float64(); {
	case p < 0.05:
		r.Kind = "Secret" // the UID of another one
	case p < 0.1:
		r.UID = "never" // its name, but an owner that is long gone
	case p < 0.13:
		r.Kind = "Alien"
	}
	return r, true
}

func (w *world) create() {
	w.uids++
	i := identity{APIVersion: "v1", Kind: "Pod", Namespace: string(rune('a' + w.rand.IntN(2))), UID: types.UID(fmt.Sprintf("u%d", w.uids))}
	if w.rand.IntN(6) == 0 {
		i.Kind, i.Namespace = "Node", ""
	}
	i.Name = fmt.Sprintf("n%d", w.rand.IntN(12))
	if w.objects[place(i)] != nil {
		return
	}
	o := &facts{identity: i}
	for range w.rand.IntN(3) {
		if r, ok := w.reference(o); ok && !slices.ContainsFunc(o.owners, func(x metav1.OwnerReference) bool { return x.UID == r.UID }) {
			o.owners = append(o.owners, r)
		}
	}
	w.objects[place(i)] = o
	w.log("create %s owners %v", o.identity, o.owners)
	w.changed(o)
}

// act is what users and controllers do.
func (w *world) act() {
	o := w.some()
	switch p := w.rand.Float64(); {
	case o == nil || p < 0.5:
		w.create()
	case p < 0.7:
		if !o.deleting {
			policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan}
			w.destroy(o, policies[w.rand.IntN(3)])
		}
	case p < 0.8:
		w.log("touch %s", o.Name)
		w.changed(o)
	case p < 0.9:
		if r, ok := w.reference(o); ok && !slices.ContainsFunc(o.owners, func(x metav1.OwnerReference) bool { return x.UID == r.UID }) {
			o.owners = append(o.owners, r)
			w.log("adopt %s by %v", o.Name, r)
			w.changed(o)
		}
	case len(o.owners) > 0:
		o.owners = o.owners[1:]
		w.log("leave %s", o.Name)
		w.changed(o)
	}
}

// deliver hands on one event of a watch, of whichever object.
func (w *world) deliver() bool {
	var ready []types.UID
	for uid, pending := range w.events {
		if len(pending) > 0 {
			ready = append(ready, uid)
		}
	}
	if len(ready) == 0 {
		return false
	}
	slices.Sort(ready)
	uid := ready[w.rand.IntN(len(ready))]
	e := w.events[uid][0]
	w.events[uid] = w.events[uid][1:]
	w.exec.update(func(g *graph) changes { return e(g) })
	if w.chance(0.1) {
		w.exec.update(func(g *graph) changes { return e(g) }) // twice
	}
	return true
}

// work lets the collector take one item of its queue.
func (w *world) work() bool {
	var waiting []types.UID
	for uid := range w.queue {
		waiting = append(waiting, uid)
	}
	if len(waiting) == 0 {
		return false
	}
	slices.Sort(waiting)
	uid := waiting[w.rand.IntN(len(waiting))]
	delete(w.queue, uid)
	if again, err := w.exec.process(w.t.Context(), uid); again || err != nil {
		w.queue[uid] = true
	}
	return true
}

// settle plays until nothing happens. What is retried for ever (kinds that are not served) does not
// count.
func (w *world) settle() {
	w.calm = true
	for range 4 {
		for range 2000 {
			if !w.deliver() {
				break
			}
			w.work()
		}
		for range 2000 {
			if w.events = pendingOnly(w.events); len(w.events) > 0 {
				w.deliver()
			}
			if !w.work() {
				break
			}
		}
	}
}

func pendingOnly(events map[types.UID][]event) map[types.UID][]event {
	for uid, pending := range events {
		if len(pending) == 0 {
			delete(events, uid)
		}
	}
	return events
}

// atRest checks that everything that was to go is gone.
func (w *world) atRest() {
	for _, o := range w.objects {
		// A reference to what cannot be verified keeps its object, and so does the owner that it
		// belongs to.
		unverifiable := slices.ContainsFunc(o.owners, func(r metav1.OwnerReference) bool {
			return w.hopeless(r) || o.Namespace == "" && r.Kind != "Node"
		})
		if unverifiable {
			continue
		}
		if len(o.owners) > 0 && !o.deleting && !w.held(o) {
			w.fail("%s stays, though all its owners are absent: %v", o.identity, o.owners)
		}
		if o.mode() == orphaning {
			w.fail("%s still waits to be orphaned", o.identity)
		}
		if o.mode() == foreground && !w.blockedForEver(o, map[types.UID]bool{}) {
			w.fail("%s still waits for its dependents", o.identity)
		}
	}
}

// blockedForEver reports whether something that cannot be verified holds an owner in the foreground.
func (w *world) blockedForEver(o *facts, visited map[types.UID]bool) bool {
	if visited[o.UID] {
		return false
	}
	visited[o.UID] = true
	for _, d := range w.objects {
		for _, r := range d.owners {
			if r.UID == o.UID && blocks(r) && slices.ContainsFunc(d.owners, func(x metav1.OwnerReference) bool {
				return w.hopeless(x) || d.Namespace == "" && x.Kind != "Node"
			}) {
				return true
			}
			if r.UID == o.UID && blocks(r) && w.blockedForEver(d, visited) {
				return true
			}
		}
	}
	return false
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)),
		objects: map[identity]*facts{}, events: map[types.UID][]event{}, queue: map[types.UID]bool{},
	}
	add := func(uid types.UID) { w.queue[uid] = true }
	w.exec = &executor{api: w, add: add, later: add, report: func(invalidReference) {}, graph: newGraph(), parallel: 1}
	return w
}

func TestRandomLives(t *testing.T) {
	lives := uint64(3000)
	if testing.Short() {
		lives = 300
	}
	for seed := range lives {
		w := newWorld(t, seed)
		for range 20 + w.rand.IntN(150) {
			switch w.rand.IntN(3) {
			case 0:
				w.act()
			case 1:
				w.deliver()
			default:
				w.work()
			}
		}
		w.settle()
		w.atRest()
		if w.sick {
			t.Fatalf("seed %d", seed)
		}
	}
}
