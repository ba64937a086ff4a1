package kinds

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// trusting converts objects for managed fields as the library does, but does not walk through a Go object to see
// whether it fits the schema that was made from its own type: that took a twentieth of a create and a twelfth of a
// patch. All that such a walk can find are items of a list with the same key, which the callers that come here
// allow, and items without one, which the comparison that follows refuses, too.
type trusting struct {
	managedfields.TypeConverter
	empty sync.Map // by schema.GroupVersionKind, a *typed.TypedValue
}

// ObjectToTyped implements managedfields.TypeConverter.
func (t *trusting) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, untyped := obj.(*unstructured.Unstructured); untyped || !slices.Contains(opts, typed.AllowDuplicates) {
		return t.TypeConverter.ObjectToTyped(obj, opts...)
	}
	of, err := t.typeOf(obj)
	if err != nil {
		return nil, err
	}
	v, err := value.NewValueReflect(obj)
	if err != nil {
		return nil, err
	}
	return typed.AsTypedUnvalidated(v, of.Schema(), of.TypeRef()), nil //nolint:staticcheck // deprecated as not worth it: see above
}

// typeOf returns a value of the object's type, with its schema.
func (t *trusting) typeOf(obj runtime.Object) (*typed.TypedValue, error) {
	kind := obj.GetObjectKind().GroupVersionKind()
	if of, ok := t.empty.Load(kind); ok {
		return of.(*typed.TypedValue), nil
	}
	of, err := t.TypeConverter.ObjectToTyped(emptyOf(kind))
	if err != nil {
		return nil, err
	}
	t.empty.Store(kind, of)
	return of, nil
}

func emptyOf(kind schema.GroupVersionKind) runtime.Object {
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(kind)
	return obj
}
