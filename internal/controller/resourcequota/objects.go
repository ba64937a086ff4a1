package resourcequota

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/quota"
	"wherry.dev/internal/controller"
)

var everything = labels.Everything()

// lookAgain is after how long it is asked again whether a resource is served that a quota counts. It is
// upstream's time between discoveries; nothing is asked unless a quota counts what is not served.
const lookAgain = 30 * time.Second

// objects knows the objects that quotas count. Those that other controllers watch too are in shared
// informers; of others, it watches the metadata from when the first quota counts them, and of claims for devices
// all, with their classes.
type objects struct {
	client   clientset.Interface
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
func newObjects(client clientset.Interface, meta metadata.Interface, changed func(schema.GroupResource, any, any), synced func(schema.GroupResource)) *objects {
	return &objects{
		client: client, metadata: meta, changed: changed, synced: synced,
		informers: map[schema.GroupResource]cache.SharedIndexInformer{},
		mapper:    restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
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
	counted := quota.Counted(q)
	if slices.Contains(counted, quota.DeviceClaims) {
		counted = append(counted, quota.DeviceClasses) // none is in the namespace
	}
	for _, r := range counted {
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
	var i cache.SharedIndexInformer
	transform := controller.DropManagedFields
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { o.changed(r, nil, obj) },
		DeleteFunc: func(obj any) { o.changed(r, lastOf(obj), nil) }, // an update changes no number
	}
	switch r {
	case quota.DeviceClaims:
		i = resourceinformers.NewResourceClaimInformer(o.client, metav1.NamespaceAll, 0, byNamespace)
		handler.UpdateFunc = func(old, obj any) { o.changed(r, old, obj) }
	case quota.DeviceClasses:
		i = resourceinformers.NewDeviceClassInformer(o.client, 0, byNamespace)
		// A class that stands for something else, or no more, changes what claims use.
		other := func(any) { o.synced(quota.DeviceClaims) }
		handler = cache.ResourceEventHandlerFuncs{
			AddFunc: other, DeleteFunc: other, UpdateFunc: func(_, obj any) { other(obj) },
		}
	default:
		i = metadatainformer.NewFilteredMetadataInformer(o.metadata, resource, metav1.NamespaceAll, 0, byNamespace, nil).Informer()
		transform = strip
	}
	if err := i.SetTransform(transform); err != nil {
		return nil, fmt.Errorf("watch %s: %w", r, err)
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

var _ quota.Devices = (*objects)(nil)

// ResourceOf implements quota.Devices.
func (o *objects) ResourceOf(class string) string {
	if c, ok := o.known(quota.DeviceClasses, class).(*resourcev1.DeviceClass); ok {
		return ptr.Deref(c.Spec.ExtendedResourceName, "")
	}
	return ""
}

// Pod implements quota.Devices.
func (o *objects) Pod(namespace, name string) *v1.Pod {
	pod, _ := o.known(schema.GroupResource{Resource: "pods"}, namespace+"/"+name).(*v1.Pod)
	return pod
}

// Claims implements quota.Devices.
func (o *objects) Claims(namespace string) []*resourcev1.ResourceClaim {
	i := o.watched(quota.DeviceClaims)
	if i == nil {
		return nil
	}
	claims, err := controller.LookUp[*resourcev1.ResourceClaim](i.GetIndexer(), cache.NamespaceIndex, namespace)
	if err != nil {
		return nil // an index in memory does not fail
	}
	return claims
}

// known returns an object of a resource that is watched, or nil.
func (o *objects) known(r schema.GroupResource, key string) any {
	if i := o.watched(r); i != nil {
		if item, ok, err := i.GetIndexer().GetByKey(key); err == nil && ok {
			return item
		}
	}
	return nil
}

func (o *objects) watched(r schema.GroupResource) cache.SharedIndexInformer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.informers[r]
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
