package registry

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"wherry.dev/internal/reflector"
)

// listWatcher is the part of a store that a Follower needs.
type listWatcher interface {
	List(ctx context.Context, opts *internalversion.ListOptions) (runtime.Object, error)
	Watch(ctx context.Context, opts *internalversion.ListOptions) (watch.Interface, error)
}

// Follower keeps something up to date with all objects of a store, for example an index that
// authorization uses. Its functions are called one at a time. Objects are shared and must not be
// changed; the Follower itself keeps none.
type Follower[T Object] struct {
	set func(obj T)
	del func(key types.NamespacedName)

	known  map[types.NamespacedName]bool
	synced chan struct{}
	once   sync.Once // closes synced

	mu    sync.Mutex
	at    uint64        // the newest resource version seen
	moved chan struct{} // closed when there is a newer one
}

// NewFollower returns a Follower that calls set and del.
func NewFollower[T Object](set func(T), del func(types.NamespacedName)) *Follower[T] {
	return &Follower[T]{
		set: set, del: del, known: map[types.NamespacedName]bool{},
		synced: make(chan struct{}), moved: make(chan struct{}),
	}
}

// Synced returns a channel that is closed once every object that existed at the start has been
// seen.
func (f *Follower[T]) Synced() <-chan struct{} { return f.synced }

// Reached returns once the Follower has seen an object of that version or a newer one. Such an
// object must exist, or Reached waits until ctx ends.
func (f *Follower[T]) Reached(ctx context.Context, version uint64) error {
	for {
		f.mu.Lock()
		at, moved := f.at, f.moved
		f.mu.Unlock()
		if at >= version {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Version returns the resource version of an object as storage has it.
func Version(obj metav1.Object) (uint64, error) {
	v, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resource version of %s: %w", obj.GetName(), err)
	}
	return v, nil
}

func (f *Follower[T]) move(obj T) {
	version, err := Version(obj)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && version > f.at {
		f.at = version
		close(f.moved)
		f.moved = make(chan struct{})
	}
}

// Run follows the objects of the store that sel selects, until ctx ends. They are those of ctx's
// namespace, if it has one.
func (f *Follower[T]) Run(ctx context.Context, store listWatcher, sel fields.Selector) error {
	var sample T
	api := stored{store}
	reflector.New(api, api, sel).Run(ctx, fmt.Sprintf("%T in storage", sample), sample, f)
	return nil
}

// stored is a store as a reflector sees it.
type stored struct{ store listWatcher }

// List is called by a reflector.
func (s stored) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	opts, err := internal(o)
	if err != nil {
		return nil, err
	}
	return s.store.List(ctx, opts)
}

// Watch is called by a reflector.
func (s stored) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	opts, err := internal(o)
	if err != nil {
		return nil, err
	}
	w, err := s.store.Watch(ctx, opts)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(ev watch.Event) (watch.Event, bool) {
		if c, ok := ev.Object.(runtime.CacheableObject); ok {
			ev.Object = c.GetObject()
		}
		return ev, true
	}), nil
}

func internal(o metav1.ListOptions) (*internalversion.ListOptions, error) {
	opts := &internalversion.ListOptions{}
	return opts, internalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&o, opts, nil)
}

// Add is called by the reflector, as are the other methods of cache.ReflectorStore. Items have the
// type of its sample.
func (f *Follower[T]) Add(item any) error {
	obj := item.(T)
	f.known[keyOf(obj)] = true
	f.set(obj)
	f.move(obj)
	return nil
}

// Update is like Add.
func (f *Follower[T]) Update(item any) error { return f.Add(item) }

// Delete forgets an object.
func (f *Follower[T]) Delete(item any) error {
	obj := item.(T)
	delete(f.known, keyOf(obj))
	f.del(keyOf(obj))
	f.move(obj)
	return nil
}

// Replace takes over all that there is: at first, and after a gap.
func (f *Follower[T]) Replace(items []any, _ string) error {
	old := f.known
	f.known = make(map[types.NamespacedName]bool, len(items))
	for _, item := range items {
		_ = f.Add(item) // never fails
	}
	for key := range old {
		if !f.known[key] {
			f.del(key)
		}
	}
	f.once.Do(func() { close(f.synced) })
	return nil
}

// Resync does nothing.
func (f *Follower[T]) Resync() error { return nil }

func keyOf(obj metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}
