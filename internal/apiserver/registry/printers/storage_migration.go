package printers

import (
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wherry.dev/internal/apiserver/registry"
)

// StorageVersionMigrations is the table of storage version migrations.
var StorageVersionMigrations = registry.Table[*storagemigrationv1.StorageVersionMigration]{
	Columns: []metav1.TableColumnDefinition{nameColumn, column("Resource", "Fully qualified resource to migrate")},
	Cells: func(m *storagemigrationv1.StorageVersionMigration, _ time.Time) []any {
		return []any{m.Name, schema.GroupResource(m.Spec.Resource).String()}
	},
}
