// Package garbagecollector deletes objects whose owners are gone, and carries out deletions in the
// foreground and those that orphan dependents.
//
// A graph of all objects that watches tell of (graph.go, pure) says what to look at next. Before
// anything is deleted, the object and each of its owners are read from the API server, and the
// deletion is bound to the UID and the version that the decision was made on (decide.go, pure;
// carryout.go). An object stays while the API server knows one of its owners, and while it cannot
// be asked for one: a kind that is not served, a failed request.
package garbagecollector

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"wherry.dev/internal/controller"
)

// Controller is the garbage collector.
type Controller struct {
	client clientset.Interface
	loop   *controller.Loop
	kinds  *kinds
	// patience is how long what cannot be decided now has to wait: an object that no watch has told
	// of, or one with an owner of a kind that is not served.
	patience workqueue.TypedRateLimiter[types.UID]
	executor *executor
	events   record.EventRecorder
}

// New returns the controller. It reads kinds from the informers that others have anyway, which the caller starts,
// and makes its own informers of all others, of metadata, when it runs.
func New(c clientset.Interface, meta metadata.Interface, shared map[schema.GroupVersionResource]cache.SharedIndexInformer) *Controller {
	gc := &Controller{
		client:   c,
		patience: workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](20*time.Millisecond, 1000*time.Second),
	}
	gc.loop = controller.NewLoop("garbage_collector_attempt_to_delete", gc.reconcile)
	gc.kinds = &kinds{
		discovery: c.Discovery(), metadata: meta, shared: shared, changed: gc.changed,
		served: func(kinds map[schema.GroupVersionKind]bool) {
			gc.executor.update(func(g *graph) changes { return g.served(kinds) })
		},
		vanished: func(kind schema.GroupVersionKind) {
			gc.executor.update(func(g *graph) changes { return g.vanished(kind) })
		},
		wake: make(chan struct{}, 1), first: make(chan struct{}), monitors: map[watched]*monitor{},
	}
	gc.executor = &executor{
		api:      client{metadata: meta, mapper: gc.kinds},
		graph:    newGraph(),
		add:      func(uid types.UID) { gc.loop.Add(string(uid)) },
		later:    func(uid types.UID) { gc.loop.AddAfter(string(uid), gc.patience.When(uid)) },
		report:   gc.report,
		parallel: 20,
	}
	return gc
}

// Run collects garbage until ctx ends. It acts on nothing before all informers have synced, or have had
// their time.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "garbage-collector-controller")
	defer stop()
	c.events = events
	var following sync.WaitGroup
	following.Go(func() { c.kinds.follow(ctx) })
	defer following.Wait()
	c.kinds.begun(ctx)
	return c.loop.Run(ctx)
}

// strip leaves of an object only what the graph needs.
func strip(obj any) (any, error) {
	if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
		o.ManagedFields, o.Labels, o.Annotations = nil, nil, nil
	}
	return obj, nil
}

// changed takes in an event of a kind.
func (c *Controller) changed(kind schema.GroupVersionKind, old, obj any) {
	was, _ := old.(metav1.Object)
	is, _ := obj.(metav1.Object)
	// A watch that was interrupted may have missed that a name got a new object.
	if was != nil && (is == nil || is.GetUID() != was.GetUID()) {
		c.executor.update(func(g *graph) changes { return g.deleted(factsOf(kind, was).identity) })
	}
	if is != nil {
		c.executor.update(func(g *graph) changes { return g.observe(factsOf(kind, is)) })
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	uid := types.UID(key)
	again, err := c.executor.process(ctx, uid)
	if again {
		c.executor.later(uid)
	} else {
		c.patience.Forget(uid)
	}
	return err
}

func (c *Controller) report(r invalidReference) {
	d := r.dependent
	c.events.Eventf(&v1.ObjectReference{APIVersion: d.APIVersion, Kind: d.Kind, Namespace: d.Namespace, Name: d.Name, UID: d.UID},
		v1.EventTypeWarning, "OwnerRefInvalidNamespace", "ownerRef %s does not exist in namespace %q", r.owner, d.Namespace)
}
