package resources

import (
	"context"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func storageVersionMigrations() registry.Row[*storagemigrationv1.StorageVersionMigration] {
	type migration = *storagemigrationv1.StorageVersionMigration
	return registry.Row[migration]{
		Resource:  gvr(storagemigrationv1.SchemeGroupVersion, "storageversionmigrations"),
		Kind:      "StorageVersionMigration",
		Singular:  "storageversionmigration",
		New:       func() migration { return &storagemigrationv1.StorageVersionMigration{} },
		NewList:   list[storagemigrationv1.StorageVersionMigrationList](),
		Table:     printers.StorageVersionMigrations,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[migration]{
			Create: func(_ context.Context, m migration) {
				m.Status = storagemigrationv1.StorageVersionMigrationStatus{}
			},
			Update: func(_ context.Context, m, old migration) {
				m.Status, m.Generation = old.Status, old.Generation
			},
			Validate:              onCreate(validation.StorageVersionMigration),
			ValidateUpdate:        onUpdate(validation.StorageVersionMigrationUpdate),
			NoUnconditionalUpdate: true,
			Reset:                 []string{"status"},
		},
		Status: &registry.Strategy[migration]{
			Update: func(_ context.Context, m, old migration) {
				m.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(&m.ObjectMeta, &old.ObjectMeta)
			},
			ValidateUpdate:        onUpdate(validation.StorageVersionMigrationStatus),
			NoUnconditionalUpdate: true,
			Reset:                 []string{"metadata", "spec"},
		},
	}
}
