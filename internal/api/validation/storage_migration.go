package validation

import (
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// StorageVersionMigration checks a migration. Whether its resource is served is left to who carries it out.
func StorageVersionMigration(m *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	p, at, r := &problems{}, field.NewPath("spec", "resource"), m.Spec.Resource
	if r.Resource == "" {
		p.required(at.Child("resource"), "resource is required to be set")
	} else {
		matches(p, at.Child("resource"), r.Resource, utilvalidation.IsDNS1035Label(r.Resource))
	}
	if r.Group != "" {
		p.subdomain(at.Child("group"), r.Group)
	}
	return p.list
}

// StorageVersionMigrationUpdate checks a migration that replaces old.
func StorageVersionMigrationUpdate(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	p := &problems{list: StorageVersionMigration(m)}
	p.unchanged(field.NewPath("spec"), m.Spec, old.Spec)
	return p.list
}

// StorageVersionMigrationStatus checks a status that replaces that of old: a migration that has ended does
// not run, ended in one way, and stays ended.
func StorageVersionMigrationStatus(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	p, at := &problems{}, field.NewPath("status")
	p.sinceVersion(at.Child("resourceVersion"), m.Status.ResourceVersion, old.Status.ResourceVersion)

	at = at.Child("conditions")
	p.addAll(metavalidation.ValidateConditions(m.Status.Conditions, at))
	bad := func(wrong bool, detail string) {
		if wrong {
			p.add(field.Invalid(at, m.Status.Conditions, detail))
		}
	}
	succeeded := migrationIs(m, storagemigrationv1.MigrationSucceeded)
	failed := migrationIs(m, storagemigrationv1.MigrationFailed)
	running := migrationIs(m, storagemigrationv1.MigrationRunning)
	bad(succeeded && failed, "Both success and failed conditions cannot be true at the same time")
	bad(succeeded && running, "Running condition cannot be true when success condition is true")
	bad(failed && running, "Running condition cannot be true when failed condition is true")
	bad(!succeeded && migrationIs(old, storagemigrationv1.MigrationSucceeded),
		"Success condition cannot be set to false once it is true")
	bad(!failed && migrationIs(old, storagemigrationv1.MigrationFailed),
		"Failed condition cannot be set to false once it is true")
	return p.list
}

// sinceVersion checks the resource version at which a migration began. One that failed at once has none.
func (p *problems) sinceVersion(at path, version, old string) {
	if version != "" {
		if _, err := resourceversion.CompareResourceVersion(version, version); err != nil {
			p.add(field.Invalid(at, version, err.Error()))
		}
	}
	if old != "" && version != old {
		p.invalid(at, version, isImmutable)
	}
}

func migrationIs(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
}
