// Package controller has the loop that every controller runs: keys come in from watches, only one
// reconciliation runs at a time for each key, failures are retried with back-off. Its sub-packages
// are the controllers, one each.
//
// A controller reads from informers, compares with what should be, and writes the difference. It
// does not trust the content of an event, which only names a key.
package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Controller is what the composition root runs.
type Controller interface {
	Run(ctx context.Context) error
}

const (
	// Patience is after how long a reconciliation is repeated that waits for an event. The event itself
	// repeats it at once; this is for the case that there is none.
	Patience = time.Second

	// concurrency is how many keys are reconciled at once (most of upstream's --concurrent-*-syncs).
	concurrency = 5
)

// Loop reconciles keys. Create one with NewLoop.
type Loop struct {
	name      string
	reconcile func(ctx context.Context, key string) error
	queue     workqueue.TypedRateLimitingInterface[string]
	synced    []cache.DoneChecker
	writes    []Writes
}

// ErrBehind is wrapped by the errors of writes that were refused because the informer was behind. As with a
// conflict, the event that brings what is newer repeats the reconciliation; if there is none, as when a
// webhook refuses, it is repeated ever more seldom, in silence.
var ErrBehind = errors.New("the informer is behind")

// Writes are what a controller wrote to one resource (package written).
type Writes interface {
	// Caught reports whether the informer has all that was written for the owner.
	Caught(owner string) bool
}

// NewLoop returns a loop that calls reconcile for every added key. An error is logged, and the key
// is retried after a back-off. A conflict is retried in silence: the informer was behind. That a
// namespace is being deleted is no reason to retry: nothing can be created in it, and nothing has to.
func NewLoop(name string, reconcile func(ctx context.Context, key string) error) *Loop {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, 30*time.Second)
	return &Loop{
		name: name, reconcile: reconcile,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[string]{Name: name}),
	}
}

// WaitFor lets the reconciliation of a key wait until the informers have what was written for it. Call it
// before Run. The loop asks before the reconciliation reads anything: what is read before the question
// may be older than the answer.
func (l *Loop) WaitFor(writes ...Writes) { l.writes = append(l.writes, writes...) }

// Add requests a reconciliation of the key.
func (l *Loop) Add(key string) { l.queue.Add(key) }

// AddObject requests a reconciliation of the object that changed from old to obj, one of which may be
// nil. It is a handler for Watch.
func (l *Loop) AddObject(old, obj any) {
	for _, o := range []any{obj, old} {
		if m, ok := o.(metav1.Object); ok {
			l.Add(cache.MetaObjectToName(m).String())
			return
		}
	}
}

// AddAfter requests a reconciliation of the key after d.
func (l *Loop) AddAfter(key string, d time.Duration) { l.queue.AddAfter(key, d) }

// Watch calls handle with the old and the new state of every object that changes. old is nil for a
// new object, new is nil for one that is gone.
func (l *Loop) Watch(informer cache.SharedIndexInformer, handle func(old, obj any)) error {
	reg, err := informer.AddEventHandler(Handler(handle))
	if err != nil {
		return fmt.Errorf("controller %s: %w", l.name, err)
	}
	l.synced = append(l.synced, reg.HasSyncedChecker())
	return nil
}

// Handler returns what calls handle as Watch does.
func Handler(handle func(old, obj any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { handle(nil, obj) },
		UpdateFunc: handle,
		DeleteFunc: func(obj any) {
			if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = t.Obj
			}
			handle(obj, nil)
		},
	}
}

// Run reconciles until ctx ends. It returns when the last reconciliation is done.
func (l *Loop) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(l.name))
	if !cache.WaitFor(ctx, "", l.synced...) {
		l.queue.ShutDown()
		return nil
	}
	stop := context.AfterFunc(ctx, l.queue.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range concurrency {
		workers.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	workers.Wait()
	return nil
}

// RunWith is Run with informers that nobody else has, which run as long.
func (l *Loop) RunWith(ctx context.Context, own ...cache.SharedIndexInformer) error {
	var running sync.WaitGroup
	for _, i := range own {
		running.Go(func() { i.RunWithContext(ctx) })
	}
	err := l.Run(ctx)
	running.Wait()
	return err
}

func (l *Loop) next(ctx context.Context) bool {
	key, quit := l.queue.Get()
	if quit {
		return false
	}
	defer l.queue.Done(key)
	if slices.ContainsFunc(l.writes, func(w Writes) bool { return !w.Caught(key) }) {
		l.queue.AddAfter(key, Patience)
		return true
	}
	err := l.reconcile(ctx, key)
	switch {
	case err == nil, apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		l.queue.Forget(key)
	case ctx.Err() != nil:
	case apierrors.IsConflict(err), errors.Is(err, ErrBehind):
		klog.FromContext(ctx).V(4).Info("Conflict, will retry", "key", key, "err", err)
		l.queue.AddRateLimited(key)
	default:
		klog.FromContext(ctx).Error(err, "Reconcile failed, will retry", "key", key)
		l.queue.AddRateLimited(key)
	}
	return true
}

// DropManagedFields is a transform for informers. Managed fields are half of many an object, and no
// controller looks at them; an update without them leaves them as they are.
func DropManagedFields(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return obj, nil
}
