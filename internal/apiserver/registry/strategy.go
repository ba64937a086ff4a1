// Package registry turns rows of a table into REST storage. A Row defines one resource in one
// place: its names, scope, types, what happens on create and update, which fields can be selected,
// how it is printed. The library's generic store does the rest.
package registry

import (
	"context"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"wherry.dev/internal/api/validation"
)

// Object is the type of a row's objects.
type Object interface {
	runtime.Object
	metav1.Object
}

// Strategy is the behaviour of a resource (or its status endpoint) that is its own. A nil hook does
// nothing. Hooks must not keep the objects.
type Strategy[T Object] struct {
	// Drop clears the fields of features that are off, before anything else. old is nil for a new object.
	Drop func(obj, old T)
	// Create normalises a new object, before validation.
	Create func(ctx context.Context, obj T)
	// Update normalises an object that replaces old, before validation.
	Update func(ctx context.Context, obj, old T)
	// Validate checks a new object; ValidateUpdate checks one that replaces old. The metadata has
	// been checked already.
	Validate       func(ctx context.Context, obj T) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old T) field.ErrorList
	// Warn returns warnings for the client; WarnNew and WarnUpdate return those that concern only
	// new, or only changed, objects.
	Warn       func(ctx context.Context, obj T) []string
	WarnNew    func(ctx context.Context, obj T) []string
	WarnUpdate func(ctx context.Context, obj, old T) []string
	// Canonicalize brings a valid object into the form in which it is stored.
	Canonicalize func(obj T)
	// Graceful decides whether a deletion is graceful, and for how long (opts.GracePeriodSeconds).
	// Nil means never.
	Graceful func(ctx context.Context, obj T, opts *metav1.DeleteOptions) bool
	// Garbage is what becomes of the dependents of a deleted object if the request does not say so;
	// if empty, they are deleted too.
	Garbage rest.GarbageCollectionPolicy
	// Reset lists fields ("status", "metadata.ownerReferences") that this endpoint does not change;
	// appliers do not become their owners here.
	Reset []string
	// CreateOnUpdate lets a PUT create the object.
	CreateOnUpdate bool
	// NoUnconditionalUpdate requires a resourceVersion in every PUT.
	NoUnconditionalUpdate bool
}

// strategy is a Strategy with what else the library needs.
type strategy[T Object] struct {
	runtime.ObjectTyper
	names.NameGenerator
	Strategy[T]
	namespaced bool
	checkName  apivalidation.ValidateNameFunc
	versions   []schema.GroupVersion
}

var (
	_ rest.RESTCreateStrategy              = strategy[*metav1.PartialObjectMetadata]{}
	_ rest.RESTUpdateStrategy              = strategy[*metav1.PartialObjectMetadata]{}
	_ rest.GarbageCollectionDeleteStrategy = strategy[*metav1.PartialObjectMetadata]{}
	_ rest.RESTGracefulDeleteStrategy      = gracefulStrategy[*metav1.PartialObjectMetadata]{}
)

func (s strategy[T]) NamespaceScoped() bool                         { return s.namespaced }
func (s strategy[T]) AllowCreateOnUpdate(context.Context) bool      { return s.CreateOnUpdate }
func (s strategy[T]) AllowUnconditionalUpdate(context.Context) bool { return !s.NoUnconditionalUpdate }

func (s strategy[T]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.Drop != nil {
		var none T
		s.Drop(obj.(T), none)
	}
	if s.Create != nil {
		s.Create(ctx, obj.(T))
	}
}

func (s strategy[T]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.Drop != nil {
		s.Drop(obj.(T), old.(T))
	}
	if s.Update != nil {
		s.Update(ctx, obj.(T), old.(T))
	}
}

func (s strategy[T]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	o := obj.(T)
	errs := apivalidation.ValidateObjectMetaAccessor(o, s.namespaced, s.checkName, field.NewPath("metadata"))
	errs = append(errs, validation.Finalizers(o.GetFinalizers())...)
	if s.Strategy.Validate != nil {
		errs = append(errs, s.Strategy.Validate(ctx, o)...)
	}
	return errs
}

func (s strategy[T]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	o, was := obj.(T), old.(T)
	errs := apivalidation.ValidateObjectMetaAccessorUpdate(o, was, field.NewPath("metadata"))
	if s.Strategy.ValidateUpdate != nil {
		errs = append(errs, s.Strategy.ValidateUpdate(ctx, o, was)...)
	}
	return errs
}

func (s strategy[T]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	var warnings []string
	if s.WarnNew != nil {
		warnings = s.WarnNew(ctx, obj.(T))
	}
	return append(warnings, s.warnAlways(ctx, obj.(T))...)
}

func (s strategy[T]) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	var warnings []string
	if s.WarnUpdate != nil {
		warnings = s.WarnUpdate(ctx, obj.(T), old.(T))
	}
	return append(warnings, s.warnAlways(ctx, obj.(T))...)
}

func (s strategy[T]) warnAlways(ctx context.Context, obj T) []string {
	if s.Warn == nil {
		return nil
	}
	return s.Warn(ctx, obj)
}

func (s strategy[T]) Canonicalize(obj runtime.Object) {
	if s.Strategy.Canonicalize != nil {
		s.Strategy.Canonicalize(obj.(T))
	}
}

// DefaultGarbageCollectionPolicy implements rest.GarbageCollectionDeleteStrategy. The library asks
// only while a garbage collector runs (storage.Backend.GetRESTOptions).
func (s strategy[T]) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.Garbage == "" {
		return rest.DeleteDependents
	}
	return s.Garbage
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s strategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if len(s.Reset) == 0 {
		return nil
	}
	set := fieldpath.NewSet()
	for _, name := range s.Reset {
		var parts []any
		for part := range strings.SplitSeq(name, ".") {
			parts = append(parts, part)
		}
		set.Insert(fieldpath.MakePathOrDie(parts...))
	}
	out := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, gv := range s.versions {
		out[fieldpath.APIVersion(gv.String())] = set
	}
	return out
}

// gracefulStrategy is a type of its own, because merely having the method changes how the library
// deletes.
type gracefulStrategy[T Object] struct{ strategy[T] }

func (s gracefulStrategy[T]) CheckGracefulDelete(ctx context.Context, obj runtime.Object, opts *metav1.DeleteOptions) bool {
	return s.Graceful(ctx, obj.(T), opts)
}
