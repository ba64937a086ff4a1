// Package claim decides which objects a controlling object has, and makes it so. An object is
// controlled by at most one other (its owner reference with controller: true). An object without a
// controller is an orphan: an owner whose selector matches it adopts it. What the selector of its
// controller no longer matches is released.
package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Sorted are objects, by what their would-be owner has to do about them.
type Sorted[T metav1.Object] struct {
	// Mine are those that it controls already.
	Mine []T
	// Adopt are orphans that it should control.
	Adopt []T
	// Release are those that it controls, but that its selector does not match.
	Release []T
}

// Sort sorts objects of the owner's namespace. An owner that is being deleted adopts and releases
// nothing, and an object that is being deleted is not adopted.
func Sort[T metav1.Object](owner metav1.Object, matches func(T) bool, objs []T) Sorted[T] {
	var out Sorted[T]
	ending := owner.GetDeletionTimestamp() != nil
	for _, obj := range objs {
		ref := metav1.GetControllerOfNoCopy(obj)
		switch {
		case ref != nil && ref.UID != owner.GetUID():
		case ref != nil && matches(obj):
			out.Mine = append(out.Mine, obj)
		case ending || obj.GetNamespace() != owner.GetNamespace():
		case ref != nil:
			out.Release = append(out.Release, obj)
		case obj.GetDeletionTimestamp() == nil && matches(obj):
			out.Adopt = append(out.Adopt, obj)
		}
	}
	return out
}

// Live reads an owner from the API server itself.
type Live func(context.Context) (metav1.Object, error)

// Owner claims objects of type T.
type Owner[T metav1.Object] struct {
	metav1.Object
	Kind    schema.GroupVersionKind
	Matches func(T) bool
	// Live reads the owner from the API server itself.
	Live Live
	// Patch applies a strategic merge patch to an object.
	Patch func(ctx context.Context, obj T, patch []byte) error
	// Finalizer, if it is not empty, comes with the adoption of an object, and goes with its release.
	Finalizer string
}

// Claim adopts and releases objects, and returns those that the owner controls then. It adopts only
// if the owner really still lives: one that was deleted without its dependents must not take them
// back, although its informer does not know yet (kubernetes#42639).
func (o Owner[T]) Claim(ctx context.Context, objs []T) ([]T, error) {
	sorted := Sort(o.Object, o.Matches, objs)
	var errs []error
	for _, obj := range sorted.Release {
		if err := o.release(ctx, obj); err != nil {
			errs = append(errs, err)
		}
	}
	if len(sorted.Adopt) > 0 {
		if err := o.mayAdopt(ctx); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
	}
	mine := sorted.Mine
	for _, obj := range sorted.Adopt {
		switch err := o.adopt(ctx, obj); {
		case err == nil:
			mine = append(mine, obj)
		case !apierrors.IsNotFound(err):
			errs = append(errs, fmt.Errorf("adopt %s/%s: %w", obj.GetNamespace(), obj.GetName(), err))
		}
	}
	return mine, errors.Join(errs...)
}

// mayAdopt returns an error unless the owner exists, and is not being deleted.
func (o Owner[T]) mayAdopt(ctx context.Context) error {
	live, err := o.Live(ctx)
	if err != nil {
		return fmt.Errorf("may %s %s/%s adopt: %w", o.Kind.Kind, o.GetNamespace(), o.GetName(), err)
	}
	if live.GetUID() != o.GetUID() {
		return fmt.Errorf("original %s %s/%s is gone: got uid %s, wanted %s", o.Kind.Kind, o.GetNamespace(), o.GetName(), live.GetUID(), o.GetUID())
	}
	if t := live.GetDeletionTimestamp(); t != nil {
		return fmt.Errorf("%s %s/%s has just been deleted at %s", o.Kind.Kind, o.GetNamespace(), o.GetName(), t)
	}
	return nil
}

// adopt makes the owner the object's controller. The UID in the patch makes it fail on another
// object of the same name, and the API server refuses a second controller.
func (o Owner[T]) adopt(ctx context.Context, obj T) error {
	ref := *metav1.NewControllerRef(o.Object, o.Kind)
	meta := map[string]any{"uid": obj.GetUID(), "ownerReferences": []metav1.OwnerReference{ref}}
	if o.Finalizer != "" {
		meta["finalizers"] = []string{o.Finalizer}
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	return o.Patch(ctx, obj, patch)
}

// release removes the owner from the object's references. An object that is gone, or another of the
// same name (which the API server calls invalid, because of the UID), has nothing to release.
func (o Owner[T]) release(ctx context.Context, obj T) error {
	ref := map[string]any{"$patch": "delete", "uid": o.GetUID()}
	meta := map[string]any{"uid": obj.GetUID(), "ownerReferences": []map[string]any{ref}}
	if o.Finalizer != "" {
		meta["$deleteFromPrimitiveList/finalizers"] = []string{o.Finalizer}
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	if err = o.Patch(ctx, obj, patch); err == nil || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return fmt.Errorf("release %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
}
