// Package namespace holds what the API server does with namespaces beyond storing them: a deleted
// namespace stays, terminating, until the namespace controller has emptied it and removed its
// finalizer.
package namespace

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"wherry.dev/internal/apiserver/registry"
)

// Store is the main endpoint of namespaces. It does not offer deletecollection.
type Store struct {
	rest.StorageWithReadiness
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.Watcher
	rest.ShortNamesProvider
	rest.CategoriesProvider
	rest.ResetFieldsStrategy
	rest.StorageVersionProvider
	store *registry.Store
}

var (
	_ rest.GracefulDeleter         = (*Store)(nil)
	_ rest.Patcher                 = (*Store)(nil)
	_ rest.Scoper                  = (*Store)(nil)
	_ rest.SingularNameProvider    = (*Store)(nil)
	_ rest.TableConvertor          = (*Store)(nil)
	_ rest.StorageWithReadiness    = (*Store)(nil)
	_ genericregistry.GenericStore = (*Store)(nil)
)

// NewStore wraps the generic store.
func NewStore(s *registry.Store) *Store {
	return &Store{
		StorageWithReadiness: s, Getter: s, Lister: s, CreaterUpdater: s, Watcher: s,
		ShortNamesProvider: s, CategoriesProvider: s, ResetFieldsStrategy: s, StorageVersionProvider: s, store: s,
	}
}

// New implements rest.Storage.
func (s *Store) New() runtime.Object { return s.store.New() }

// NamespaceScoped implements rest.Scoper.
func (s *Store) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (s *Store) GetSingularName() string { return s.store.GetSingularName() }

// ConvertToTable implements rest.TableConvertor.
func (s *Store) ConvertToTable(ctx context.Context, obj, opts runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, obj, opts)
}

// GetCreateStrategy implements GenericStore.
func (s *Store) GetCreateStrategy() rest.RESTCreateStrategy { return s.store.CreateStrategy }

// GetUpdateStrategy implements GenericStore.
func (s *Store) GetUpdateStrategy() rest.RESTUpdateStrategy { return s.store.UpdateStrategy }

// GetDeleteStrategy implements GenericStore.
func (s *Store) GetDeleteStrategy() rest.RESTDeleteStrategy { return s.store.DeleteStrategy }

// GetCorruptObjDeleter implements rest.CorruptObjectDeleterProvider. A namespace that cannot be read is
// gone at once, and what is in it stays.
func (s *Store) GetCorruptObjDeleter() rest.GracefulDeleter { return s.store.GetCorruptObjDeleter() }

// Delete implements rest.GracefulDeleter. The first call only marks the namespace.
func (s *Store) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, err := s.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*corev1.Namespace)
	if opts == nil {
		opts = metav1.NewDeleteOptions(0)
	}
	if err := s.preconditions(ns, opts); err != nil {
		return nil, false, err
	}
	if ns.DeletionTimestamp.IsZero() {
		return s.terminate(ctx, name, validate, opts)
	}
	if len(ns.Spec.Finalizers) != 0 {
		return ns, false, nil
	}
	return s.store.Delete(ctx, name, validate, opts)
}

// preconditions limits the deletion to the very namespace that was read.
func (s *Store) preconditions(ns *corev1.Namespace, opts *metav1.DeleteOptions) error {
	if opts.Preconditions == nil {
		opts.Preconditions = &metav1.Preconditions{}
	}
	pre := opts.Preconditions
	if pre.UID == nil {
		pre.UID = &ns.UID
	} else if *pre.UID != ns.UID {
		return s.conflict(ns.Name, "Precondition failed: UID in precondition: %v, UID in object meta: %v", *pre.UID, ns.UID)
	}
	if pre.ResourceVersion != nil && *pre.ResourceVersion != ns.ResourceVersion {
		return s.conflict(ns.Name, "Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *pre.ResourceVersion, ns.ResourceVersion)
	}
	return nil
}

func (s *Store) conflict(name, format string, args ...any) error {
	return apierrors.NewConflict(s.store.DefaultQualifiedResource, name, fmt.Errorf(format, args...))
}

// terminate marks the namespace as terminating. From then on nothing can be created in it.
func (s *Store) terminate(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	key, err := s.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, false, err
	}
	mark := func(obj runtime.Object) (runtime.Object, error) {
		ns, ok := obj.(*corev1.Namespace)
		if !ok {
			return nil, fmt.Errorf("expected *corev1.Namespace, got %T", obj)
		}
		if validate != nil {
			if err := validate(ctx, ns); err != nil {
				return nil, err
			}
		}
		if ns.DeletionTimestamp.IsZero() {
			ns.DeletionTimestamp = new(metav1.Now())
		}
		ns.Status.Phase = corev1.NamespaceTerminating
		ns.Finalizers = finalizers(ns.Finalizers, opts)
		return ns, nil
	}
	out := &corev1.Namespace{}
	pre := storage.Preconditions{UID: opts.Preconditions.UID, ResourceVersion: opts.Preconditions.ResourceVersion}
	err = s.store.Storage.GuaranteedUpdate(ctx, key, out, false, &pre, storage.SimpleUpdate(mark), dryrun.IsDryRun(opts.DryRun), nil)
	if err != nil {
		resource := s.store.DefaultQualifiedResource
		err = storeerr.InterpretGetError(err, resource, name)
		err = storeerr.InterpretDeleteError(err, resource, name)
		if _, ok := err.(*apierrors.StatusError); !ok { //nolint:errorlint // only an API status itself answers the client
			err = apierrors.NewInternalError(err)
		}
		return nil, false, err
	}
	return out, false, nil
}

// finalizers returns those of a namespace whose dependents are to be orphaned, or deleted first, or neither. If a request
// says nothing of that, they stay.
func finalizers(now []string, opts *metav1.DeleteOptions) []string {
	orphan, foreground := slices.Contains(now, metav1.FinalizerOrphanDependents), slices.Contains(now, metav1.FinalizerDeleteDependents)
	switch {
	case opts.OrphanDependents != nil: //nolint:staticcheck // older clients send it
		orphan, foreground = *opts.OrphanDependents, !*opts.OrphanDependents //nolint:staticcheck // as above
	case opts.PropagationPolicy != nil:
		orphan = *opts.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *opts.PropagationPolicy == metav1.DeletePropagationForeground
	}
	set := func(finalizer string, wanted bool) {
		now = slices.DeleteFunc(slices.Clone(now), func(f string) bool { return f == finalizer })
		if wanted {
			now = append(now, finalizer)
		}
	}
	set(metav1.FinalizerOrphanDependents, orphan)
	set(metav1.FinalizerDeleteDependents, foreground)
	return now
}

// PrepareCreate gives a new namespace the finalizer that the controller removes.
func PrepareCreate(_ context.Context, ns *corev1.Namespace) {
	ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
}

// PrepareUpdate keeps the finalizers, which have an endpoint of their own, and the status.
func PrepareUpdate(_ context.Context, ns, old *corev1.Namespace) {
	ns.Spec.Finalizers, ns.Status = old.Spec.Finalizers, old.Status
}

// Canonicalize adds the name label to a namespace whose name came from generateName.
func Canonicalize(ns *corev1.Namespace) {
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

// DeleteDuringUpdate reports whether an update that removed the last finalizer also deletes the
// namespace.
func DeleteDuringUpdate(ctx context.Context, key string, obj, existing runtime.Object) bool {
	ns, ok := obj.(*corev1.Namespace)
	return ok && len(ns.Spec.Finalizers) == 0 && genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, existing)
}
