package manager_test

import (
	"testing"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAStorageVersionMigrationIsCarriedOut(t *testing.T) {
	c := start(t, nil, "storage-version-migrator-controller")
	migrations := c.StoragemigrationV1().StorageVersionMigrations()
	m := &storagemigrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	m.Spec.Resource = metav1.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}
	if _, err := migrations.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, migrations, "m", func(m *storagemigrationv1.StorageVersionMigration, _ bool) bool {
		if meta.IsStatusConditionTrue(m.Status.Conditions, "Failed") {
			t.Fatalf("%+v", m.Status)
		}
		return meta.IsStatusConditionTrue(m.Status.Conditions, "Succeeded")
	})
}
