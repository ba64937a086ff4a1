package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"
)

// Kept is all objects of a resource, for what many requests ask: a list from the watch cache takes tens of
// microseconds, even if there is nothing in it. It is a moment behind the watch cache, as informers are. Objects
// are shared: nobody may change them.
type Kept[T Object] struct {
	lookup   *Lookup
	resource schema.GroupResource
	follower *Follower[T]

	mu sync.RWMutex
	// in has the objects of each namespace, or those of the cluster under "", by name. The slices are replaced,
	// never changed.
	in map[string][]T
}

// Keep makes a Lookup keep a resource from the time when it runs. It is called while the server is assembled.
// Whoever calls it again for a resource gets the same.
func Keep[T Object](l *Lookup, resource schema.GroupResource) *Kept[T] {
	if k, ok := l.kept[resource].(*Kept[T]); ok {
		return k
	}
	k := &Kept[T]{lookup: l, resource: resource, in: map[string][]T{}}
	k.follower = NewFollower(k.set, k.del)
	l.kept[resource] = k
	return k
}

// List returns the objects in a namespace, or those of the cluster for "", ordered by name. Before they are all
// known, it reads them from the watch cache.
func (k *Kept[T]) List(ctx context.Context, namespace string) ([]T, error) {
	if !k.synced() {
		return k.read(ctx, namespace)
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.in[namespace], nil
}

// Get returns an object. One that is not known is looked up in storage.
func (k *Kept[T]) Get(ctx context.Context, namespace, name string) (T, error) {
	if !k.synced() {
		return Get[T](ctx, k.lookup, k.resource, namespace, name)
	}
	k.mu.RLock()
	objects := k.in[namespace]
	k.mu.RUnlock()
	if i, ok := find(objects, name); ok {
		return objects[i], nil
	}
	return GetLive[T](ctx, k.lookup, k.resource, namespace, name)
}

func (k *Kept[T]) synced() bool {
	select {
	case <-k.follower.Synced():
		return true
	default:
		return false
	}
}

// read lists the objects by the watch cache.
func (k *Kept[T]) read(ctx context.Context, namespace string) ([]T, error) {
	list, err := List[runtime.Object](ctx, k.lookup, k.resource, namespace, storage.Everything)
	if err != nil {
		return nil, err
	}
	var out []T
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj, ok := item.(T)
		if !ok {
			return fmt.Errorf("list of %s: unexpected %T", k.resource, item)
		}
		out = append(out, obj)
		return nil
	})
	return out, err
}

func (k *Kept[T]) set(obj T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	objects := slices.Clone(k.in[obj.GetNamespace()])
	i, ok := find(objects, obj.GetName())
	if ok {
		objects[i] = obj
	} else {
		objects = slices.Insert(objects, i, obj)
	}
	k.in[obj.GetNamespace()] = objects
}

func (k *Kept[T]) del(key types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	objects := k.in[key.Namespace]
	i, ok := find(objects, key.Name)
	switch {
	case !ok:
	case len(objects) == 1:
		delete(k.in, key.Namespace)
	default:
		k.in[key.Namespace] = slices.Delete(slices.Clone(objects), i, i+1)
	}
}

func find[T Object](objects []T, name string) (int, bool) {
	return slices.BinarySearchFunc(objects, name, func(obj T, name string) int { return cmp.Compare(obj.GetName(), name) })
}

// run follows the resource until ctx ends. One that is not stored is never known: those who ask get an error.
func (k *Kept[T]) run(ctx context.Context) error {
	store := k.lookup.stores[k.resource]
	if store == nil {
		return nil
	}
	return k.follower.Run(ctx, store, fields.Everything())
}

// keeper is a Kept of any type.
type keeper interface {
	run(ctx context.Context) error
}

// Run keeps what is to be kept, until ctx ends.
func (l *Lookup) Run(ctx context.Context) error {
	var all errgroup.Group
	for _, k := range l.kept {
		all.Go(func() error { return k.run(ctx) })
	}
	return all.Wait()
}
