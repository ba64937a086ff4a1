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
	Columns: []metav1.TableColumnDefinition{nameColumn, column("Resource", "GroupResource to migrate"), column("Status", "Status of the migration")},
	Cells: func(m *storagemigrationv1.StorageVersionMigration, _ time.Time) []any {
		status := "Unknown"
		for _, c := range m.Status.Conditions {
			if c.Status == metav1.ConditionTrue {
				status = c.Type
			}
		}
		return []any{m.Name, schema.GroupResource(m.Spec.Resource).String(), status}
	},
}
