package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What the API says of an object, other than failures.
var (
	errAbsent      = errors.New("the object does not exist")
	errChanged     = errors.New("the object has changed")
	errNotServed   = errors.New("the kind is not served")
	errNoNamespace = errors.New("the kind has a namespace, what refers to it has none")
)

// api is the API server. Everything that changes an object does so only to the one with its UID.
type api interface {
	// resolve clears the namespace if the kind has none. It fails with errNotServed or errNoNamespace.
	resolve(id identity) (identity, error)
	// get returns the object that has the name now, whatever its UID; errAbsent if there is none.
	get(ctx context.Context, id identity) (facts, error)
	// delete fails with errChanged if the object is not in that version any more.
	delete(ctx context.Context, live facts, policy metav1.DeletionPropagation) error
	dropReferences(ctx context.Context, id identity, owners []types.UID) error
	unblockReferences(ctx context.Context, live facts) error
	// removeFinalizer fails with errChanged if the object is not in that version any more.
	removeFinalizer(ctx context.Context, live facts, finalizer string) error
}

// executor carries out what the graph decides.
type executor struct {
	api    api
	add    func(types.UID) // look at it now
	later  func(types.UID) // look at it after a while that grows
	report func(invalidReference)
	// parallel is how many dependents of one object are orphaned at once.
	parallel int

	mu    sync.Mutex
	graph *graph
}

// attempts is how often a change is repeated at once when another writer came first.
const attempts = 5

// update changes the graph, and requests what follows from that.
func (e *executor) update(change func(g *graph) changes) {
	e.mu.Lock()
	ch := change(e.graph)
	e.mu.Unlock()
	for _, ref := range ch.invalid {
		e.report(ref)
	}
	for _, uid := range ch.check {
		e.add(uid)
	}
	for _, uid := range ch.later {
		e.later(uid)
	}
}

func (e *executor) ask(question func(g *graph) step) step {
	e.mu.Lock()
	defer e.mu.Unlock()
	return question(e.graph)
}

// process does the next thing for a UID. again means that it is to be looked at again after a while.
func (e *executor) process(ctx context.Context, uid types.UID) (again bool, err error) {
	s := e.ask(func(g *graph) step { return g.next(uid) })
	if s.verb == verify {
		s, err = e.verify(ctx, s.object)
	}
	if err == nil {
		err = e.carryOut(ctx, s)
	}
	switch {
	case errors.Is(err, errNotServed):
		return true, nil // it may be served some time
	case errors.Is(err, errNoNamespace):
		return false, nil // it cannot be verified, ever
	}
	return s.verb == recheck, err
}

// verify gets an object and its owners, and returns what to do with it.
func (e *executor) verify(ctx context.Context, asked identity) (step, error) {
	live, err := e.get(ctx, asked)
	if errors.Is(err, errAbsent) {
		return step{verb: nothing}, nil
	}
	if err != nil {
		return step{}, err
	}
	owners := make([]owner, 0, len(live.owners))
	for _, ref := range live.owners {
		state, err := e.ownerState(ctx, ref, live.Namespace)
		if err != nil {
			return step{}, fmt.Errorf("owner %s of %s: %w", ownerIdentity(ref, live.Namespace), live.identity, err)
		}
		owners = append(owners, owner{ref, state})
	}
	return e.ask(func(g *graph) step { return g.judge(live, owners) }), nil
}

// get returns the latest version of an object of the graph. If there is none, or another one bears
// its name, the graph learns it, and get fails with errAbsent.
func (e *executor) get(ctx context.Context, asked identity) (facts, error) {
	id, err := e.api.resolve(asked)
	if err != nil {
		return facts{}, fmt.Errorf("%s: %w", asked, err)
	}
	live, err := e.api.get(ctx, id)
	if err == nil && live.UID != id.UID {
		err = errAbsent
	}
	if errors.Is(err, errAbsent) {
		e.update(func(g *graph) changes { return g.notFound(asked, id) })
	}
	if err != nil {
		return facts{}, fmt.Errorf("get %s: %w", id, err)
	}
	return live, nil
}

// ownerState asks for an owner where the reference says it is. A kind that is not served says
// nothing about its objects.
func (e *executor) ownerState(ctx context.Context, ref metav1.OwnerReference, namespace string) (ownerState, error) {
	id, err := e.api.resolve(ownerIdentity(ref, namespace))
	if err != nil {
		return "", err
	}
	e.mu.Lock()
	known := e.graph.isAbsent(id)
	e.mu.Unlock()
	if known {
		return dangling, nil
	}
	live, err := e.api.get(ctx, id)
	var state ownerState
	switch {
	case errors.Is(err, errAbsent):
		state = stateOf(ref, nil)
	case err != nil:
		return "", err
	default:
		state = stateOf(ref, &live)
	}
	if state == dangling {
		e.update(func(g *graph) changes { g.knownAbsent(id); return changes{} })
	}
	return state, nil
}

func (e *executor) carryOut(ctx context.Context, s step) error {
	switch s.verb {
	case remove:
		return e.remove(ctx, s)
	case dropReferences:
		return present(e.api.dropReferences(ctx, s.object, s.owners))
	case unblock:
		if err := e.api.unblockReferences(ctx, s.live); err != nil {
			return present(err)
		}
		e.add(s.object.UID)
	case await:
		for _, dep := range s.dependents {
			e.add(dep.UID)
		}
	case removeFinalizer:
		return e.removeFinalizer(ctx, s)
	case orphanDependents:
		return e.orphan(ctx, s)
	case nothing, recheck, verify:
	}
	return nil
}

// present drops the error that says that an object is gone: a watch will tell the graph.
func present(err error) error {
	if errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

// remove deletes the object in the version that the decision was made on. If it has another version
// by now, but nothing that the decision depends on is different, that one is deleted: frequent
// changes of a status must not keep an object for ever.
func (e *executor) remove(ctx context.Context, s step) error {
	live := s.live
	var err error
	for range attempts {
		err = e.api.delete(ctx, live, s.policy)
		if errors.Is(err, errAbsent) {
			e.update(func(g *graph) changes { return g.notFound(s.object, live.identity) })
			return nil
		}
		if !errors.Is(err, errChanged) {
			return err
		}
		now, getErr := e.get(ctx, s.object)
		if getErr != nil {
			return present(getErr)
		}
		if live = now; !sameGrounds(s.live, live) {
			break
		}
	}
	return fmt.Errorf("delete %s: %w", s.object, err)
}

func (e *executor) removeFinalizer(ctx context.Context, s step) error {
	var err error
	for range attempts {
		live, getErr := e.get(ctx, s.object)
		if getErr != nil {
			return present(getErr)
		}
		if !live.has(s.finalizer) {
			return nil
		}
		if err = e.api.removeFinalizer(ctx, live, s.finalizer); !errors.Is(err, errChanged) {
			return present(err)
		}
	}
	return fmt.Errorf("remove finalizer %s of %s: %w", s.finalizer, s.object, err)
}

// orphan takes the references to an object from its dependents, also from those that appear in the
// meantime, and lets it go after that.
func (e *executor) orphan(ctx context.Context, s step) error {
	freed := map[types.UID]bool{}
	for {
		left := slices.DeleteFunc(s.dependents, func(dep identity) bool { return freed[dep.UID] })
		if len(left) == 0 {
			return e.removeFinalizer(ctx, s)
		}
		if err := e.free(ctx, s.object, left); err != nil {
			return err
		}
		for _, dep := range left {
			freed[dep.UID] = true
		}
		if s = e.ask(func(g *graph) step { return g.next(s.object.UID) }); s.verb != orphanDependents {
			return nil // it is not waiting for this any more
		}
	}
}

// free takes the references to an object from dependents, some of them at once. What cannot be freed is
// in no other's way.
func (e *executor) free(ctx context.Context, owner identity, dependents []identity) error {
	var calls errgroup.Group
	calls.SetLimit(e.parallel)
	for _, dep := range dependents {
		calls.Go(func() error {
			if err := present(e.api.dropReferences(ctx, dep, []types.UID{owner.UID})); err != nil {
				return fmt.Errorf("orphan %s of %s: %w", dep, owner, err)
			}
			return nil
		})
	}
	return calls.Wait()
}
