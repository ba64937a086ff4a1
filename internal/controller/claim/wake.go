package claim

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// Selector returns the selector that an owner's spec describes, or nil if it is invalid.
func Selector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil
	}
	return out
}

// Waker wakes the owners that an object's change may concern.
type Waker[T metav1.Object] struct {
	// Kind is that of the owners.
	Kind schema.GroupVersionKind
	// Owners is their store; Selector returns the selector of one, which may be nil.
	Owners   cache.Indexer
	Selector func(owner any) labels.Selector
	// Add wakes the owner with the key.
	Add func(key string)
}

// Changed wakes the owner that controls the object, the one that did, and those whose selector
// matches an orphan. It is a handler for controller.Loop's Watch.
func (w Waker[T]) Changed(old, obj any) {
	was, had := old.(T)
	is, has := obj.(T)
	if had {
		w.wakeOwner(was)
	}
	if !has {
		return
	}
	w.wakeOwner(is)
	if metav1.GetControllerOfNoCopy(is) != nil {
		return
	}
	if !had || metav1.GetControllerOfNoCopy(was) != nil || !maps.Equal(was.GetLabels(), is.GetLabels()) {
		w.offer(is)
	}
}

// ControllerOf returns the object's reference to an owner of this kind that controls it, or nil.
func ControllerOf(obj metav1.Object, kind schema.GroupVersionKind) *metav1.OwnerReference {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil || ref.Kind != kind.Kind || ref.APIVersion != kind.GroupVersion().String() {
		return nil
	}
	return ref
}

func (w Waker[T]) wakeOwner(obj T) {
	if ref := ControllerOf(obj, w.Kind); ref != nil {
		w.Add(obj.GetNamespace() + "/" + ref.Name)
	}
}

// offer wakes the owners that want an orphan.
func (w Waker[T]) offer(orphan T) {
	if len(orphan.GetLabels()) == 0 {
		return
	}
	items, err := w.Owners.ByIndex(cache.NamespaceIndex, orphan.GetNamespace())
	if err != nil {
		return
	}
	for _, item := range items {
		selector := w.Selector(item)
		if selector == nil || selector.Empty() || !selector.Matches(labels.Set(orphan.GetLabels())) {
			continue
		}
		w.Add(cache.MetaObjectToName(item.(metav1.Object)).String())
	}
}
