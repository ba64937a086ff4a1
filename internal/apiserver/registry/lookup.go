package registry

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
)

// Lookup reads objects of other resources directly from storage: for admission, authentication and
// the like, which must not go through the API's own front door. It is filled while the server is
// assembled, and only read afterwards.
type Lookup struct {
	stores map[schema.GroupResource]*genericregistry.Store
	kept   map[schema.GroupResource]keeper
}

// NewLookup returns an empty Lookup.
func NewLookup() *Lookup {
	return &Lookup{stores: map[schema.GroupResource]*genericregistry.Store{}, kept: map[schema.GroupResource]keeper{}}
}

// Add adds the store of a resource.
func (l *Lookup) Add(resource schema.GroupResource, store *genericregistry.Store) {
	l.stores[resource] = store
}

// Store returns the store of a resource, or nil.
func (l *Lookup) Store(resource schema.GroupResource) *genericregistry.Store {
	return l.stores[resource]
}

// Get returns an object from the watch cache or, if that does not have it, from storage. The object
// is the caller's own.
func Get[T runtime.Object](ctx context.Context, l *Lookup, resource schema.GroupResource, namespace, name string) (T, error) {
	obj, err := get[T](ctx, l, resource, namespace, name, "0")
	if apierrors.IsNotFound(err) {
		return get[T](ctx, l, resource, namespace, name, "")
	}
	return obj, err
}

// GetLive returns an object as storage has it now.
func GetLive[T runtime.Object](ctx context.Context, l *Lookup, resource schema.GroupResource, namespace, name string) (T, error) {
	return get[T](ctx, l, resource, namespace, name, "")
}

func get[T runtime.Object](ctx context.Context, l *Lookup, resource schema.GroupResource, namespace, name, version string) (T, error) {
	var zero T
	if name == "" || len(content.IsPathSegmentName(name)) > 0 { // nothing has such a name
		return zero, apierrors.NewNotFound(resource, name)
	}
	store := l.stores[resource]
	if store == nil {
		return zero, fmt.Errorf("%s are not served", resource)
	}
	key, err := store.KeyFunc(genericapirequest.WithNamespace(ctx, namespace), name)
	if err != nil {
		return zero, err
	}
	obj := store.NewFunc()
	if err := store.Storage.Get(ctx, key, storage.GetOptions{ResourceVersion: version}, obj); err != nil {
		if storage.IsNotFound(err) {
			return zero, apierrors.NewNotFound(resource, name)
		}
		return zero, err
	}
	out, ok := obj.(T)
	if !ok {
		return zero, fmt.Errorf("%s: unexpected %T", resource, obj)
	}
	return out, nil
}

// List returns all objects of a resource in one namespace, or in all for "", from the watch cache.
// The items are shared: the caller must not change them.
func List[L runtime.Object](ctx context.Context, l *Lookup, resource schema.GroupResource, namespace string, p storage.SelectionPredicate) (L, error) {
	return listAt[L](ctx, l, resource, namespace, p, "0")
}

// ListLive is like List, but reads what storage has now.
func ListLive[L runtime.Object](ctx context.Context, l *Lookup, resource schema.GroupResource, namespace string, p storage.SelectionPredicate) (L, error) {
	return listAt[L](ctx, l, resource, namespace, p, "")
}

// PodsOn returns the pods bound to a node, as storage has them now. They are shared:
// the caller must not change them.
func PodsOn(ctx context.Context, l *Lookup, node string) ([]corev1.Pod, error) {
	const nodeName = "spec.nodeName"
	pods := schema.GroupResource{Resource: "pods"}
	list, err := listAt[*corev1.PodList](ctx, l, pods, "", storage.SelectionPredicate{
		Label:       labels.Everything(),
		Field:       fields.OneTermEqualSelector(nodeName, node),
		IndexFields: []string{nodeName},
	}, "")
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func listAt[L runtime.Object](ctx context.Context, l *Lookup, resource schema.GroupResource, namespace string, p storage.SelectionPredicate, version string) (L, error) {
	var zero L
	store := l.stores[resource]
	if store == nil {
		return zero, fmt.Errorf("%s are not served", resource)
	}
	p.GetAttrs = store.PredicateFunc(p.Label, p.Field).GetAttrs
	list := store.NewListFunc()
	opts := storage.ListOptions{ResourceVersion: version, Predicate: p, Recursive: true}
	if version != "" {
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	key := store.KeyRootFunc(genericapirequest.WithNamespace(ctx, namespace))
	if err := store.Storage.GetList(ctx, key, opts, list); err != nil {
		return zero, fmt.Errorf("list %s: %w", resource, err)
	}
	out, ok := list.(L)
	if !ok {
		return zero, fmt.Errorf("list of %s: unexpected %T", resource, list)
	}
	return out, nil
}
