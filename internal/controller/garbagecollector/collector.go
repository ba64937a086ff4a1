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
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
)

// Controller is the garbage collector.
type Controller struct {
	client   clientset.Interface
	metadata metadata.Interface
	loop     *controller.Loop
	// patience is how long what cannot be decided now has to wait: an object that no watch has told
	// of, or one with an owner of a kind that is not served.
	patience workqueue.TypedRateLimiter[types.UID]
	executor *executor
	events   record.EventRecorder
}

// New returns the controller. It makes its own informers, of metadata, when it runs.
func New(c clientset.Interface, meta metadata.Interface) *Controller {
	gc := &Controller{
		client: c, metadata: meta,
		patience: workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](20*time.Millisecond, 1000*time.Second),
	}
	gc.loop = controller.NewLoop("garbagecollector", gc.reconcile)
	gc.executor = &executor{
		graph:  newGraph(),
		add:    func(uid types.UID) { gc.loop.Add(string(uid)) },
		later:  func(uid types.UID) { gc.loop.AddAfter(string(uid), gc.patience.When(uid)) },
		report: gc.report,
	}
	return gc
}

// Run collects garbage until ctx ends. It acts on nothing before all informers have synced.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "garbage-collector-controller")
	defer stop()
	c.events = events

	served, ok := c.discover(ctx)
	if !ok {
		return c.loop.Run(ctx) // ctx has ended
	}
	c.executor.api = client{metadata: c.metadata, mapper: restmapper.NewDiscoveryRESTMapper(served.groups)}
	informers := metadatainformer.NewSharedInformerFactoryWithOptions(c.metadata, 0, metadatainformer.WithTransform(strip))
	for _, r := range served.resources {
		if err := c.loop.Watch(informers.ForResource(r.resource).Informer(), c.watcher(r.kind)); err != nil {
			return err
		}
	}
	informers.Start(ctx.Done())
	err := c.loop.Run(ctx)
	informers.Shutdown()
	return err
}

// strip leaves of an object only what the graph needs.
func strip(obj any) (any, error) {
	if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
		o.ManagedFields, o.Labels, o.Annotations = nil, nil, nil
	}
	return obj, nil
}

// watcher returns the handler of a kind's events.
func (c *Controller) watcher(gvk schema.GroupVersionKind) func(old, obj any) {
	return func(old, obj any) {
		was, _ := old.(*metav1.PartialObjectMetadata)
		is, _ := obj.(*metav1.PartialObjectMetadata)
		// A watch that was interrupted may have missed that a name got a new object.
		if was != nil && (is == nil || is.UID != was.UID) {
			c.executor.update(func(g *graph) changes { return g.deleted(factsOf(gvk, was).identity) })
		}
		if is != nil {
			c.executor.update(func(g *graph) changes { return g.observe(factsOf(gvk, is)) })
		}
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

// served is what the API server serves.
type served struct {
	groups    []*restmapper.APIGroupResources
	resources []watched
}

// watched is a resource that can be collected, in its group's preferred version.
type watched struct {
	resource schema.GroupVersionResource
	kind     schema.GroupVersionKind
}

// discover asks until the API server has told of everything that it serves. It returns false when
// ctx has ended.
func (c *Controller) discover(ctx context.Context) (served, bool) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		groups, lists, err := c.client.Discovery().ServerGroupsAndResources()
		if err == nil {
			return arrange(groups, lists), true
		}
		klog.FromContext(ctx).Error(err, "Discovery failed, will retry", "controller", "garbagecollector")
		select {
		case <-ctx.Done():
			return served{}, false
		case <-time.After(wait):
		}
	}
}

// arrange puts what discovery tells in order.
func arrange(groups []*metav1.APIGroup, lists []*metav1.APIResourceList) served {
	byVersion := map[string][]metav1.APIResource{}
	for _, l := range lists {
		byVersion[l.GroupVersion] = l.APIResources
	}
	var out served
	for _, g := range groups {
		group := &restmapper.APIGroupResources{Group: *g, VersionedResources: map[string][]metav1.APIResource{}}
		versions := slices.Clone(g.Versions)
		slices.SortStableFunc(versions, func(a, b metav1.GroupVersionForDiscovery) int {
			return preference(a, g) - preference(b, g)
		})
		seen := map[string]bool{}
		for _, v := range versions {
			group.VersionedResources[v.Version] = byVersion[v.GroupVersion]
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			for _, r := range byVersion[v.GroupVersion] {
				if collectable(gv, r) && !seen[r.Name] {
					seen[r.Name] = true
					out.resources = append(out.resources, watched{gv.WithResource(r.Name), gv.WithKind(r.Kind)})
				}
			}
		}
		out.groups = append(out.groups, group)
	}
	return out
}

// preference is 0 for the group's preferred version and 1 for all others.
func preference(v metav1.GroupVersionForDiscovery, g *metav1.APIGroup) int {
	if v.Version == g.PreferredVersion.Version {
		return 0
	}
	return 1
}

// collectable reports whether a resource can be watched and deleted. Events have no dependents, and
// are too many.
func collectable(gv schema.GroupVersion, r metav1.APIResource) bool {
	if r.Name == "events" && (gv.Group == "" || gv.Group == "events.k8s.io") {
		return false
	}
	return discovery.SupportsAllVerbs{Verbs: []string{"delete", "list", "watch"}}.Match(gv.String(), &r)
}
