// Package podsource delivers the pods that the node should run: those that the API server bound to
// it, and those in a directory of manifests or at a URL. It also follows the other collections that
// a kubelet needs (services, its own node).
package podsource

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/reflector"
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

// follow lists and watches a collection until the context ends.
func follow(ctx context.Context, name string, r *reflector.Reflector, sample runtime.Object, ev Events) {
	r.Run(ctx, name, sample, &sink{ev: ev, known: map[types.UID]runtime.Object{}})
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
	}
	for uid, o := range s.known { // first, as it happened: a new object may bear the old one's name
		if _, ok := now[uid]; !ok {
			s.ev.Gone(o)
		}
	}
	for _, item := range list {
		s.ev.Set(item.(runtime.Object))
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
