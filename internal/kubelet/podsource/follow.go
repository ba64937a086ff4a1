// Package podsource delivers the pods that the node should run: those that the API server bound to
// it, and those in a directory of manifests or at a URL. It also follows the other collections that
// a kubelet needs (services, its own node).
package podsource

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// Events receives the changes of a collection. Calls come one at a time.
type Events struct {
	// Set is called when an object exists, is new or has changed.
	Set func(obj runtime.Object)
	// Gone is called when an object no longer exists.
	Gone func(obj runtime.Object)
	// Synced is called, once, when everything that existed at first has been set.
	Synced func()
}

// Follow lists and watches a collection until the context ends.
func Follow(ctx context.Context, name string, lw cache.ListerWatcher, sample runtime.Object, ev Events) {
	s := &sink{ev: ev, known: map[types.UID]runtime.Object{}}
	r := cache.NewReflectorWithOptions(lw, sample, s, cache.ReflectorOptions{
		Name: name,
		// A node waits for its API server at every start: retry soon, and not too rarely.
		Backoff: &wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 10, Cap: 5 * time.Second},
	})
	r.RunWithContext(ctx)
}

// sink turns a reflector's calls into events.
type sink struct {
	ev     Events
	mu     sync.Mutex
	known  map[types.UID]runtime.Object
	synced bool
}

func (s *sink) Add(obj any) error    { return s.set(obj) }
func (s *sink) Update(obj any) error { return s.set(obj) }
func (s *sink) Resync() error        { return nil }

func (s *sink) set(obj any) error {
	o, uid, err := object(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[uid] = o
	s.ev.Set(o)
	return nil
}

// Delete hands over the last state of the object, which may say how it was deleted.
func (s *sink) Delete(obj any) error {
	o, uid, err := object(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, uid)
	s.ev.Gone(o)
	return nil
}

func (s *sink) Replace(list []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := make(map[types.UID]runtime.Object, len(list))
	for _, item := range list {
		o, uid, err := object(item)
		if err != nil {
			return err
		}
		now[uid] = o
		s.ev.Set(o)
	}
	for uid, o := range s.known {
		if _, ok := now[uid]; !ok {
			s.ev.Gone(o)
		}
	}
	s.known = now
	if !s.synced && s.ev.Synced != nil {
		s.ev.Synced()
	}
	s.synced = true
	return nil
}

func object(obj any) (runtime.Object, types.UID, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, "", err
	}
	return obj.(runtime.Object), m.GetUID(), nil
}
