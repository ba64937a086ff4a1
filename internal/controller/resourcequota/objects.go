package resourcequota

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/api/quota"
)

var everything = labels.Everything()

// lookAgain is after how long it is asked again whether a resource is served that a quota counts. It is
// upstream's time between discoveries; nothing is asked unless a quota counts what is not served.
const lookAgain = 30 * time.Second

// objects knows the objects that quotas count. Those that other controllers watch too are in shared
// informers; of others, it watches the metadata from when the first quota counts them.
type objects struct {
	metadata metadata.Interface
	changed  func(r schema.GroupResource, old, obj any)
	synced   func(r schema.GroupResource)

	mu        sync.Mutex
	informers map[schema.GroupResource]cache.SharedIndexInformer
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	asked     time.Time      // when the mapper was last told to look again
	ending    bool           // nothing is started any more
	running   sync.WaitGroup // the informers that are ours
}

// newObjects returns an empty one. It calls changed for each event of an informer that it starts
// itself, and synced when that has all objects.
func newObjects(meta metadata.Interface, d discovery.DiscoveryInterface, changed func(schema.GroupResource, any, any), synced func(schema.GroupResource)) *objects {
	return &objects{
		metadata: meta, changed: changed, synced: synced,
		informers: map[schema.GroupResource]cache.SharedIndexInformer{},
		mapper:    restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d)),
	}
}

// have tells of an informer that somebody else runs.
func (o *objects) have(r schema.GroupResource, informer cache.SharedIndexInformer) {
	o.informers[r] = informer
}

// stop waits for the informers, whose context has ended.
func (o *objects) stop() {
	o.mu.Lock()
	o.ending = true
	o.mu.Unlock()
	o.running.Wait()
}

// known is what is known of the objects that a quota counts.
type known struct {
	objects  map[schema.GroupResource][]runtime.Object
	complete bool          // false while an informer is behind
	again    time.Duration // after how long there may be more, 0 for never
}

// of returns the objects that the quota counts.
func (o *objects) of(ctx context.Context, q *v1.ResourceQuota) (known, error) {
	out := known{objects: map[schema.GroupResource][]runtime.Object{}, complete: true}
	for _, r := range quota.Counted(q) {
		informer, err := o.informer(ctx, r)
		if meta.IsNoMatchError(err) {
			out.again = lookAgain // there are none
			continue
		}
		if err != nil {
			return out, err
		}
		if informer == nil || !informer.HasSynced() {
			out.complete = false
			continue
		}
		items, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, q.Namespace)
		if err != nil {
			return out, err
		}
		for _, item := range items {
			if obj, ok := item.(runtime.Object); ok {
				out.objects[r] = append(out.objects[r], obj)
			}
		}
	}
	return out, nil
}

// informer returns the resource's, and starts it if there is none. It returns nil if we are ending.
func (o *objects) informer(ctx context.Context, r schema.GroupResource) (cache.SharedIndexInformer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := o.informers[r]; i != nil || o.ending {
		return i, nil
	}
	resource, err := o.servedLocked(r)
	if err != nil {
		return nil, err
	}
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	i := metadatainformer.NewFilteredMetadataInformer(o.metadata, resource, metav1.NamespaceAll, 0, byNamespace, nil).Informer()
	if err := i.SetTransform(strip); err != nil {
		return nil, fmt.Errorf("watch %s: %w", r, err)
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { o.changed(r, nil, obj) },
		DeleteFunc: func(obj any) { o.changed(r, lastOf(obj), nil) }, // an update changes no number
	}
	if _, err := i.AddEventHandler(handler); err != nil {
		return nil, fmt.Errorf("watch %s: %w", r, err)
	}
	o.informers[r] = i
	o.running.Go(func() { i.RunWithContext(ctx) })
	o.running.Go(func() {
		if cache.WaitFor(ctx, "", i.HasSyncedChecker()) {
			o.synced(r)
		}
	})
	return i, nil
}

// servedLocked returns the version in which a resource is served.
func (o *objects) servedLocked(r schema.GroupResource) (schema.GroupVersionResource, error) {
	found, err := o.mapper.ResourceFor(r.WithVersion(""))
	if meta.IsNoMatchError(err) && time.Since(o.asked) >= lookAgain {
		o.asked = time.Now()
		o.mapper.Reset()
		found, err = o.mapper.ResourceFor(r.WithVersion(""))
	}
	if err == nil && found.GroupResource() != r {
		return found, &meta.NoResourceMatchError{PartialResource: r.WithVersion("")} // "job" for jobs, say
	}
	return found, err
}

func lastOf(obj any) any {
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return t.Obj
	}
	return obj
}

// strip leaves of an object only what is needed to count it.
func strip(obj any) (any, error) {
	if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
		o.ManagedFields, o.Labels, o.Annotations, o.OwnerReferences, o.Finalizers = nil, nil, nil, nil, nil
	}
	return obj, nil
}
