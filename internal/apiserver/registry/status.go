package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// StatusStore serves an endpoint that reads and updates an existing object, and nothing else:
// /status and the like.
type StatusStore struct{ store *genericregistry.Store }

var (
	_ rest.Patcher             = (*StatusStore)(nil)
	_ rest.ResetFieldsStrategy = (*StatusStore)(nil)
)

// Store returns the generic store behind the endpoint.
func (s *StatusStore) Store() *genericregistry.Store { return s.store }

// New implements rest.Storage.
func (s *StatusStore) New() runtime.Object { return s.store.New() }

// Destroy implements rest.Storage. The main endpoint owns the storage.
func (s *StatusStore) Destroy() {}

// Get implements rest.Getter.
func (s *StatusStore) Get(ctx context.Context, name string, opts *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, opts)
}

// Update implements rest.Updater. It never creates.
func (s *StatusStore) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, opts *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return updateIn(ctx, s.store, name, info, create, update, false, opts)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s *StatusStore) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// ConvertToTable implements rest.TableConvertor.
func (s *StatusStore) ConvertToTable(ctx context.Context, obj, opts runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, obj, opts)
}

func metaPathSegmentName(name string) []string   { return content.IsPathSegmentName(name) }
func metaPathSegmentPrefix(name string) []string { return content.IsPathSegmentPrefix(name) }
