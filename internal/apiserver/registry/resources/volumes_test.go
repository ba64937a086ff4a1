package resources

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"

	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

func TestDataSourcesOfClaims(t *testing.T) {
	group := "snapshot.storage.k8s.io"
	snapshot := &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}
	snapshotRef := &corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}
	backup := &corev1.TypedLocalObjectReference{APIGroup: new("example.com"), Kind: "Backup", Name: "b"}
	backupRef := &corev1.TypedObjectReference{APIGroup: new("example.com"), Kind: "Backup", Name: "b"}
	elsewhere := &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "c", Namespace: new("other")}
	type spec = corev1.PersistentVolumeClaimSpec
	for _, c := range []struct {
		name     string
		is       spec
		was      *spec
		want     spec
		wantsOld *spec
	}{
		{name: "none"},
		{name: "the old form", is: spec{DataSource: snapshot}, want: spec{DataSource: snapshot, DataSourceRef: snapshotRef}},
		{name: "the new form", is: spec{DataSourceRef: backupRef}, want: spec{DataSource: backup, DataSourceRef: backupRef}},
		{name: "a source that the old form never had", is: spec{DataSource: backup}},
		{name: "in another namespace", is: spec{DataSourceRef: elsewhere}},
		{name: "an old client that has one form alone", is: spec{DataSource: backup},
			was:  &spec{DataSource: backup, DataSourceRef: backupRef},
			want: spec{DataSource: backup, DataSourceRef: backupRef}, wantsOld: &spec{DataSource: backup, DataSourceRef: backupRef}},
		{name: "stored before", is: spec{DataSource: snapshot}, was: &spec{DataSource: snapshot},
			want: spec{DataSource: snapshot, DataSourceRef: snapshotRef}, wantsOld: &spec{DataSource: snapshot, DataSourceRef: snapshotRef}},
	} {
		t.Run(c.name, func(t *testing.T) {
			settleDataSources(&c.is, c.was)
			if !apiequality.Semantic.DeepEqual(c.is, c.want) {
				t.Errorf("the claim:\n%s", diff.Diff(c.want, c.is))
			}
			if !apiequality.Semantic.DeepEqual(c.was, c.wantsOld) {
				t.Errorf("the one before:\n%s", diff.Diff(c.wantsOld, c.was))
			}
		})
	}
}
