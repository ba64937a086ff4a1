// Package resourcequota writes the status of quotas: what they limit, and how much of it is used. It
// counts from informers, as soon as a quota or an object that it counts has changed. Admission does not
// rely on it: that counts for itself what storage holds.
package resourcequota

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/api/quota"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/written"
)

// Controller writes the status of quotas. Create one with New.
type Controller struct {
	client  clientset.Interface
	quotas  corelisters.ResourceQuotaLister
	written *written.Log
	objects *objects
	loop    *controller.Loop
}

// New returns the controller, with the informers of f. What those do not have is watched by meta, once
// a quota counts it.
func New(client clientset.Interface, meta metadata.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	core := f.Core().V1()
	quotas := core.ResourceQuotas()
	c := &Controller{client: client, quotas: quotas.Lister(), written: written.New(quotas.Informer().GetIndexer())}
	c.loop = controller.NewLoop("resourcequota_primary", c.reconcile)
	c.loop.WaitFor(c.written)
	c.objects = newObjects(client, meta, c.changed, c.wakeAll)
	if err := c.loop.Watch(quotas.Informer(), c.loop.AddObject); err != nil {
		return nil, err
	}
	for resource, informer := range map[string]cache.SharedIndexInformer{
		"pods": core.Pods().Informer(), "services": core.Services().Informer(), "resourcequotas": quotas.Informer(),
		"persistentvolumeclaims": core.PersistentVolumeClaims().Informer(),
		"replicationcontrollers": core.ReplicationControllers().Informer(),
	} {
		r := schema.GroupResource{Resource: resource}
		c.objects.have(r, informer)
		if err := c.loop.Watch(informer, func(old, obj any) { c.changed(r, old, obj) }); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Run writes statuses until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.objects.stop()
	return c.loop.Run(ctx)
}

// changed wakes the quotas of which an object uses more or less than before.
func (c *Controller) changed(r schema.GroupResource, old, obj any) {
	was, _ := old.(metav1.Object)
	is, _ := obj.(metav1.Object)
	if was == nil && is == nil {
		return
	}
	namespace := namespaceOf(was, is)
	quotas, err := c.quotas.ResourceQuotas(namespace).List(everything)
	if err != nil {
		return // an index in memory does not fail
	}
	now := time.Now()
	for _, q := range quotas {
		if usesOtherwise(q, r, was, is, now, c.objects) {
			c.loop.AddObject(nil, q)
		}
	}
}

func namespaceOf(was, is metav1.Object) string {
	if is != nil {
		return is.GetNamespace()
	}
	return was.GetNamespace()
}

// usesOtherwise reports whether the change from was to is, one of which may be nil, changes how much of
// the quota is used, now or when the pod should have ended.
func usesOtherwise(q *v1.ResourceQuota, r schema.GroupResource, was, is metav1.Object, now time.Time,
	d quota.Devices) bool {
	before, begins := use(q, r, was, now, d)
	after, ends := use(q, r, is, now, d)
	return !begins.Equal(ends) || !quota.Equal(before, after)
}

// use returns what an object, or nil, uses of the quota, and when a pod will use nothing any more.
func use(q *v1.ResourceQuota, r schema.GroupResource, obj metav1.Object, now time.Time,
	d quota.Devices) (v1.ResourceList, time.Time) {
	o, ok := obj.(runtime.Object)
	if !ok {
		return nil, time.Time{}
	}
	used := quota.By(q, r, o, now, d)
	if pod, ok := obj.(*v1.Pod); ok && len(used) > 0 {
		if end, ending := quota.EndOf(pod); ending && !now.After(end) {
			return used, end
		}
	}
	return used, time.Time{}
}

// wakeAll reconciles all quotas that count a resource: its objects are known now.
func (c *Controller) wakeAll(r schema.GroupResource) {
	quotas, err := c.quotas.List(everything)
	if err != nil {
		return // an index in memory does not fail
	}
	for _, q := range quotas {
		for _, counted := range quota.Counted(q) {
			if counted == r {
				c.loop.AddObject(nil, q)
			}
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	q, err := c.quotas.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || q.DeletionTimestamp != nil {
		return err
	}
	known, err := c.objects.of(ctx, q)
	if err != nil {
		return fmt.Errorf("usage of quota %s: %w", key, err)
	}
	if known.again > 0 {
		c.loop.AddAfter(key, known.again)
	}
	if !known.complete {
		return nil // the informer that is behind will wake us
	}
	now := time.Now()
	status, next := statusOf(q, known.objects, now, c.objects)
	if !next.IsZero() {
		c.loop.AddAfter(key, max(next.Sub(now), 0)+time.Millisecond)
	}
	return c.write(ctx, key, q, status)
}

// statusOf returns the status that a quota should have when there are these objects, and when that
// changes without any further event, if it does.
func statusOf(q *v1.ResourceQuota, known map[schema.GroupResource][]runtime.Object, now time.Time,
	d quota.Devices) (v1.ResourceQuotaStatus, time.Time) {
	var next time.Time
	sum := v1.ResourceList{}
	for r, objects := range known {
		for _, obj := range objects {
			m, ok := obj.(metav1.Object)
			if !ok {
				continue
			}
			used, end := use(q, r, m, now, d)
			quota.Add(sum, used)
			if !end.IsZero() && (next.IsZero() || end.Before(next)) {
				next = end
			}
		}
	}
	return v1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: quota.Limited(q, sum)}, next
}

func (c *Controller) write(ctx context.Context, key string, q *v1.ResourceQuota, status v1.ResourceQuotaStatus) error {
	if quota.Equal(q.Status.Hard, status.Hard) && quota.Equal(q.Status.Used, status.Used) {
		return nil
	}
	q = q.DeepCopy()
	status.DeepCopyInto(&q.Status)
	got, err := c.client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, q, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("status of quota %s: %w", key, err)
	}
	c.written.Wrote(key, got)
	return nil
}
