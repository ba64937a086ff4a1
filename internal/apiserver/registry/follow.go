package registry

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

// watcher is the part of a store that Follow needs.
type watcher interface {
	Watch(ctx context.Context, opts *internalversion.ListOptions) (watch.Interface, error)
}

// Follower keeps something up to date with all objects of a store, for example an index that
// authorization uses. Its functions are called one at a time. Objects are shared and must not be
// changed.
type Follower[T Object] struct {
	Set    func(obj T)
	Delete func(key types.NamespacedName)

	known  map[types.NamespacedName]bool
	synced chan struct{}

	mu    sync.Mutex
	at    uint64        // the newest resource version seen
	moved chan struct{} // closed when there is a newer one
}

// NewFollower returns a Follower that calls set and del.
func NewFollower[T Object](set func(T), del func(types.NamespacedName)) *Follower[T] {
	return &Follower[T]{
		Set: set, Delete: del, known: map[types.NamespacedName]bool{},
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

// retryAfter is the pause before a broken watch is opened again. A watch that worked before is
// retried at once the first time.
const retryAfter = 100 * time.Millisecond

// Run follows the store until ctx ends.
func (f *Follower[T]) Run(ctx context.Context, store watcher) error {
	for {
		started := time.Now()
		if err := f.follow(ctx, store); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Storage watch ended, restarting it", "type", fmt.Sprintf("%T", *new(T)), "err", err)
		}
		pause := time.Duration(0)
		if time.Since(started) < retryAfter {
			pause = retryAfter
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (f *Follower[T]) follow(ctx context.Context, store watcher) error {
	w, err := store.Watch(ctx, &internalversion.ListOptions{
		Watch:                true,
		AllowWatchBookmarks:  true,
		SendInitialEvents:    new(true),
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	seen := map[types.NamespacedName]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return fmt.Errorf("watch closed")
			}
			if seen, err = f.handle(event, seen); err != nil {
				return err
			}
		}
	}
}

// handle processes one event. seen collects the initial objects and is nil afterwards.
func (f *Follower[T]) handle(event watch.Event, seen map[types.NamespacedName]bool) (map[types.NamespacedName]bool, error) {
	object := event.Object
	if c, ok := object.(runtime.CacheableObject); ok {
		object = c.GetObject()
	}
	if event.Type == watch.Error {
		return seen, fmt.Errorf("watch error: %v", object)
	}
	obj, ok := object.(T)
	if !ok {
		return seen, fmt.Errorf("watch sent an unexpected %T", object)
	}
	key := types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	switch event.Type {
	case watch.Added, watch.Modified:
		f.known[key] = true
		if seen != nil {
			seen[key] = true
		}
		f.Set(obj)
		f.move(obj)
	case watch.Deleted:
		delete(f.known, key)
		delete(seen, key)
		f.Delete(key)
		f.move(obj)
	case watch.Bookmark:
		if obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" && seen != nil {
			f.initial(seen)
			return nil, nil
		}
	}
	return seen, nil
}

// initial ends the first phase: it deletes what a previous watch knew and this one has not seen.
func (f *Follower[T]) initial(seen map[types.NamespacedName]bool) {
	for key := range f.known {
		if !seen[key] {
			delete(f.known, key)
			f.Delete(key)
		}
	}
	select {
	case <-f.synced:
	default:
		close(f.synced)
	}
}
