package registry

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"wherry.dev/internal/api/validation"
)

// Scale says how the size of an object is read and set at its /scale endpoint.
type Scale[T Object] struct {
	// Replicas returns where the object keeps how many replicas it asks for: in spec.replicas.
	Replicas func(obj T) **int32
	// Observed returns how many there are.
	Observed func(obj T) int32
	// Selector returns what selects their pods.
	Selector func(obj T) (labels.Selector, error)
	Table    Table[*autoscalingv1.Scale]
}

// scaleStore serves /scale: it shows an object as a Scale, and changes nothing but its replicas.
type scaleStore[T Object] struct {
	main     *Store
	scale    Scale[T]
	resource schema.GroupVersionResource
}

var (
	_ rest.Patcher                  = (*scaleStore[*metav1.PartialObjectMetadata])(nil)
	_ rest.TableConvertor           = (*scaleStore[*metav1.PartialObjectMetadata])(nil)
	_ rest.GroupVersionKindProvider = (*scaleStore[*metav1.PartialObjectMetadata])(nil)
)

// New implements rest.Storage.
func (s *scaleStore[T]) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy implements rest.Storage. The main endpoint owns the storage.
func (s *scaleStore[T]) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (s *scaleStore[T]) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// Get implements rest.Getter.
func (s *scaleStore[T]) Get(ctx context.Context, name string, opts *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.main.Get(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return s.of(obj)
}

// Update implements rest.Updater. It never creates.
func (s *scaleStore[T]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, opts *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	admit := func(ctx context.Context, obj, old runtime.Object) error {
		after, err := s.of(obj)
		if err != nil {
			return err
		}
		before, err := s.of(old)
		if err != nil {
			return err
		}
		return update(ctx, after, before)
	}
	obj, _, err := s.main.Update(ctx, name, &scaled[T]{s, name, info}, rest.ValidateAllObjectFunc, admit, false, opts)
	if err != nil {
		return nil, false, err
	}
	out, err := s.of(obj)
	return out, false, err
}

// ConvertToTable implements rest.TableConvertor.
func (s *scaleStore[T]) ConvertToTable(ctx context.Context, obj, opts runtime.Object) (*metav1.Table, error) {
	return tableConvertor[*autoscalingv1.Scale]{s.scale.Table, s.resource.GroupResource()}.ConvertToTable(ctx, obj, opts)
}

// of returns an object as a Scale.
func (s *scaleStore[T]) of(obj runtime.Object) (runtime.Object, error) {
	o, ok := obj.(T)
	if !ok {
		return nil, fmt.Errorf("scale of %s: unexpected %T", s.resource.Resource, obj)
	}
	return s.view(o)
}

func (s *scaleStore[T]) view(obj T) (*autoscalingv1.Scale, error) {
	selector, err := s.scale.Selector(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	out := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(),
			ResourceVersion: obj.GetResourceVersion(), CreationTimestamp: obj.GetCreationTimestamp(),
		},
		Status: autoscalingv1.ScaleStatus{Replicas: s.scale.Observed(obj), Selector: selector.String()},
	}
	if n := *s.scale.Replicas(obj); n != nil {
		out.Spec.Replicas = *n
	}
	return out, nil
}

// scaled turns a change of a Scale into one of the object: object → Scale → changed Scale → object.
type scaled[T Object] struct {
	*scaleStore[T]
	name string
	info rest.UpdatedObjectInfo
}

// Preconditions implements rest.UpdatedObjectInfo.
func (s *scaled[T]) Preconditions() *metav1.Preconditions { return s.info.Preconditions() }

// UpdatedObject implements rest.UpdatedObjectInfo.
func (s *scaled[T]) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	obj, ok := old.DeepCopyObject().(T)
	if !ok {
		return nil, fmt.Errorf("scale of %s: unexpected %T", s.resource.Resource, old)
	}
	endpoint := schema.GroupResource{Group: s.resource.Group, Resource: s.resource.Resource + "/scale"}
	if obj.GetResourceVersion() == "" {
		return nil, apierrors.NewNotFound(endpoint, s.name)
	}
	version := s.resource.GroupVersion()
	managed := managedfields.NewScaleHandler(obj.GetManagedFields(), version,
		managedfields.ResourcePathMappings{version.String(): fieldpath.MakePathOrDie("spec", "replicas")})
	before, err := s.view(obj)
	if err != nil {
		return nil, err
	}
	if before.ManagedFields, err = managed.ToSubresource(); err != nil {
		return nil, err
	}
	after, err := s.changed(ctx, before)
	if err != nil {
		return nil, err
	}
	if after.UID != "" && after.UID != obj.GetUID() {
		return nil, apierrors.NewConflict(endpoint, s.name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", after.UID, obj.GetUID())) //nolint:staticcheck // upstream's words
	}
	*s.scale.Replicas(obj) = &after.Spec.Replicas
	obj.SetResourceVersion(after.ResourceVersion)
	fields, err := managed.ToParent(after.ManagedFields)
	if err != nil {
		return nil, err
	}
	obj.SetManagedFields(fields)
	return obj, nil
}

// changed returns the Scale that the request makes of before.
func (s *scaled[T]) changed(ctx context.Context, before *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	obj, err := s.info.UpdatedObject(ctx, before)
	if err != nil {
		return nil, err
	}
	if obj == nil {
		return nil, apierrors.NewBadRequest("nil update passed to Scale")
	}
	after, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected input object type to be Scale, but %T", obj))
	}
	if errs := validation.Scale(after); len(errs) > 0 {
		return nil, apierrors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(), s.name, errs)
	}
	return after, nil
}
