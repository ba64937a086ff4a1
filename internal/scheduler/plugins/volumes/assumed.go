package volumes

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// assumed shows an informer's objects as they will be when the scheduler's writes have come back from the API server.
//
//	                    assume                 written               the informer has another version
//	as the informer ─────────────▶ reserved ─────────────▶ written ──────────────────────────────────┐
//	has it   ▲                        │ release, or another version                                  │
//	         └────────────────────────┴──────────────────────────────────────────────────────────────┘
//
// A change holds while the informer has the version from which it was made. What comes next is either that change, or
// somebody else's, before which the write fails.
type assumed[T metav1.Object] struct {
	resource schema.GroupResource
	store    cache.Indexer

	mu      sync.RWMutex
	changes map[string]change[T] // by the object's key
}

type change[T metav1.Object] struct {
	from string // the version of the object that was changed
	to   T      // as it was assumed or, once it is written, as the API server has it
}

func newAssumed[T metav1.Object](resource string, store cache.Indexer) *assumed[T] {
	return &assumed[T]{resource: schema.GroupResource{Resource: resource}, store: store, changes: map[string]change[T]{}}
}

// stored returns the object as the informer has it.
func (a *assumed[T]) stored(key string) (T, error) {
	var none T
	obj, ok, err := a.store.GetByKey(key)
	if err != nil {
		return none, fmt.Errorf("%s %q: %w", a.resource.Resource, key, err)
	}
	if !ok {
		return none, apierrors.NewNotFound(a.resource, key)
	}
	t, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("%s %q: got a %T", a.resource.Resource, key, obj)
	}
	return t, nil
}

// get returns the object as it will be.
func (a *assumed[T]) get(key string) (T, error) {
	obj, err := a.stored(key)
	if err != nil {
		return obj, err
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.changedLocked(key, obj), nil
}

// index returns the objects that an index of the informer has for the value, as they will be.
func (a *assumed[T]) index(name, value string) ([]T, error) {
	objs, err := a.store.ByIndex(name, value)
	if err != nil {
		return nil, fmt.Errorf("%s by %s: %w", a.resource.Resource, name, err)
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	out := make([]T, 0, len(objs))
	for _, obj := range objs {
		if t, ok := obj.(T); ok {
			out = append(out, a.changedLocked(cache.MetaObjectToName(t).String(), t))
		}
	}
	return out, nil
}

func (a *assumed[T]) changedLocked(key string, obj T) T {
	if c, ok := a.changes[key]; ok && c.from == obj.GetResourceVersion() {
		return c.to
	}
	return obj
}

// assume changes an object. The change must have been made from the version that the informer has now. Only the
// scheduling cycle calls it.
func (a *assumed[T]) assume(obj T) error {
	key := cache.MetaObjectToName(obj).String()
	now, err := a.stored(key)
	if err != nil {
		return err
	}
	if now.GetResourceVersion() != obj.GetResourceVersion() {
		return fmt.Errorf("%s %q has changed since the scheduler looked at it", a.resource.Resource, key)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pruneLocked()
	a.changes[key] = change[T]{from: obj.GetResourceVersion(), to: obj}
	return nil
}

// pruneLocked forgets changes that the informer has overtaken.
func (a *assumed[T]) pruneLocked() {
	for key, c := range a.changes {
		if now, err := a.stored(key); err != nil || now.GetResourceVersion() != c.from {
			delete(a.changes, key)
		}
	}
}

// written notes what the API server has made of a change.
func (a *assumed[T]) written(obj, answer T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := cache.MetaObjectToName(obj).String()
	if c, ok := a.changes[key]; ok && any(c.to) == any(obj) {
		a.changes[key] = change[T]{from: c.from, to: answer}
	}
}

// release takes back a change, unless it was written, or is not the one that holds any more.
func (a *assumed[T]) release(obj T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := cache.MetaObjectToName(obj).String()
	if c, ok := a.changes[key]; ok && any(c.to) == any(obj) {
		delete(a.changes, key)
	}
}
