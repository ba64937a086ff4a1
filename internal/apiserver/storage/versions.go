package storage

import (
	"bytes"
	"maps"
	"reflect"
	"sync"
	"weak"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// sharing returns a codec for the events of a watch cache, which keeps every version of an object
// that a minute's events brought, and more if few have come since. A pod that ran once has eight of
// them, alike in all but the status. What this codec decodes shares with an earlier version what
// has not changed: nothing in a watch cache is ever written to.
func sharing(resource schema.GroupResource, codec runtime.Codec) runtime.Codec {
	switch resource {
	case v1.Resource("pods"):
		return &versions[v1.Pod]{
			Codec: codec,
			meta:  func(p *v1.Pod) *metav1.ObjectMeta { return &p.ObjectMeta },
			share: func(now, before *v1.Pod) { shareEqual(&now.Spec, &before.Spec) },
		}
	case batchv1.Resource("jobs"):
		return &versions[batchv1.Job]{
			Codec: codec,
			meta:  func(j *batchv1.Job) *metav1.ObjectMeta { return &j.ObjectMeta },
			share: func(now, before *batchv1.Job) { shareEqual(&now.Spec, &before.Spec) },
		}
	}
	return codec
}

// versions is a codec that knows the version of each object that was decoded last, for as long as
// somebody else does. Of a kind there are many objects, with large specs and many versions.
type versions[T any] struct {
	runtime.Codec
	meta func(*T) *metav1.ObjectMeta
	// share makes an object use the parts of another that are the same, other than metadata.
	share func(now, before *T)

	mu    sync.Mutex
	last  map[types.UID]weak.Pointer[T]
	sweep int // the size of last at which it is cleared of what nobody has any more
}

// sweepFrom is the number of objects from which it is worth looking for those that are gone.
const sweepFrom = 256

// Decode implements runtime.Decoder.
func (c *versions[T]) Decode(
	data []byte, gvk *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, gvk, into)
	if now, ok := any(obj).(*T); ok && err == nil {
		c.add(now)
	}
	return obj, kind, err
}

// add makes an object share, and only then lets others share with it: events are decoded side by side.
func (c *versions[T]) add(now *T) {
	uid := c.meta(now).UID
	c.mu.Lock()
	before := c.last[uid].Value()
	c.mu.Unlock()
	if before != nil {
		shareMeta(c.meta(now), c.meta(before))
		c.share(now, before)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteLocked(uid, now)
}

func (c *versions[T]) noteLocked(uid types.UID, now *T) {
	if len(c.last) >= c.sweep {
		maps.DeleteFunc(c.last, func(_ types.UID, p weak.Pointer[T]) bool { return p.Value() == nil })
		c.sweep = max(sweepFrom, 2*len(c.last))
	}
	if c.last == nil {
		c.last = map[types.UID]weak.Pointer[T]{}
	}
	c.last[uid] = weak.Make(now)
}

func shareMeta(now, before *metav1.ObjectMeta) {
	shareEqual(&now.Name, &before.Name)
	shareEqual(&now.GenerateName, &before.GenerateName)
	shareEqual(&now.Namespace, &before.Namespace)
	shareEqual(&now.UID, &before.UID)
	shareEqual(&now.Labels, &before.Labels)
	shareEqual(&now.Annotations, &before.Annotations)
	shareEqual(&now.OwnerReferences, &before.OwnerReferences)
	shareEqual(&now.Finalizers, &before.Finalizers)
	for i := range now.ManagedFields {
		shareFields(&now.ManagedFields[i], before.ManagedFields)
	}
}

// shareFields makes an entry use the set of fields of an earlier one, if that is the same.
func shareFields(now *metav1.ManagedFieldsEntry, before []metav1.ManagedFieldsEntry) {
	for i := range before {
		b := before[i].FieldsV1
		if now.FieldsV1 != nil && b != nil && bytes.Equal(now.FieldsV1.GetRawBytes(), b.GetRawBytes()) {
			now.FieldsV1 = b
			return
		}
	}
}

// shareEqual replaces a value by an equal one, so that what it points to exists once.
func shareEqual[T any](now, before *T) {
	if reflect.DeepEqual(now, before) {
		*now = *before
	}
}
