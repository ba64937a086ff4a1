// Package reflector runs client-go's reflectors by the rules that the kubelet and the API server's
// own indexes need: they read what there is now, not what a cache had some time ago; they retry
// soon, because whatever they follow is away at every start; and when they are told to end, they do
// so at once and leave no call behind.
package reflector

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// API lists and watches one kind of object: a typed client, or what acts as one.
type API[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Reflector keeps a store in step with objects of the API.
type Reflector struct {
	// Refused, if not nil, is told why a list failed.
	Refused func(error)

	lw      cache.ListerWatcher
	listing sync.RWMutex // held while a list is under way
}

// New returns a reflector of those objects of api, a part of client, that sel selects.
func New[L runtime.Object](client any, api API[L], sel fields.Selector) *Reflector {
	r := &Reflector{}
	r.lw = cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = sel.String()
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // what a pod refers to may be younger than the cache's state
			}
			return r.list(ctx, func() (runtime.Object, error) { return api.List(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = sel.String()
			return api.Watch(ctx, o)
		},
	}, client)
	return r
}

// list calls f, unless ctx has ended. client-go does not wait for a list that is no longer wanted.
func (r *Reflector) list(ctx context.Context, f func() (runtime.Object, error)) (runtime.Object, error) {
	r.listing.RLock()
	defer r.listing.RUnlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	list, err := f()
	if err != nil && ctx.Err() == nil && r.Refused != nil {
		r.Refused(err)
	}
	return list, err
}

// backoff has no jitter, so that simulated lives can be repeated.
var backoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 10, Cap: 5 * time.Second}

// workedFor is how long a watch must have lived for the back-off to start anew.
const workedFor = 10 * time.Second

// Run keeps store in step with the objects, which are like sample, until ctx ends.
func (r *Reflector) Run(ctx context.Context, name string, sample runtime.Object, store cache.ReflectorStore) {
	c := cache.NewReflectorWithOptions(r.lw, sample, store, cache.ReflectorOptions{
		Name: name, Backoff: &backoff, Clock: clockUntil{clock.RealClock{}, ctx.Done()},
	})
	// Its own Run has a longer memory of failures, and makes errors of different reflectors wait for
	// each other.
	_ = backoff.DelayWithReset(clock.RealClock{}, workedFor).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := c.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Cannot list and watch, trying again", "what", name, "err", err)
		}
		return false, nil
	})
	r.listing.Lock() // wait for the last list
	defer r.listing.Unlock()
}

// clockUntil is a clock whose waits end when done is closed: a reflector whose connection is refused
// would otherwise finish its wait first.
type clockUntil struct {
	clock.RealClock
	done <-chan struct{}
}

func (c clockUntil) After(d time.Duration) <-chan time.Time {
	over := make(chan time.Time)
	t := time.NewTimer(d)
	go func() {
		defer t.Stop()
		defer close(over)
		select {
		case <-t.C:
		case <-c.done:
		}
	}()
	return over
}
