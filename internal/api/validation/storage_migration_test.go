package validation

import (
	"testing"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
)

type migration = storagemigrationv1.StorageVersionMigration

func TestStorageVersionMigration(t *testing.T) {
	for _, tc := range []yamlCase{
		{"core", `{resource: {resource: secrets}}`, nil},
		{"custom", `{resource: {group: example.com, resource: widgets}}`, nil},
		{"nothing", `{}`, []string{"spec.resource.resource: Required value: resource is required to be set"}},
		{"a subresource", `{resource: {resource: pods/status}}`, []string{"spec.resource.resource: Invalid value"}},
		{"a kind", `{resource: {group: Example, resource: Widget}}`, []string{"spec.resource.group: Invalid value", "spec.resource.resource: Invalid value"}},
	} {
		t.Run(tc.name, func(t *testing.T) { told(t, StorageVersionMigration(read[migration](t, "spec: "+tc.spec)), tc.want) })
	}
	old := read[migration](t, `spec: {resource: {resource: secrets}}`)
	told(t, StorageVersionMigrationUpdate(old, old), nil)
	told(t, StorageVersionMigrationUpdate(read[migration](t, `spec: {resource: {resource: pods}}`), old), []string{"spec: Invalid value"})
}

func TestStorageVersionMigrationStatus(t *testing.T) {
	const (
		at      = ", reason: R, message: m, lastTransitionTime: \"2026-11-22T10:00:00Z\"}"
		running = `{type: Running, status: "True"` + at
		stopped = `{type: Running, status: "False"` + at
		done    = `{type: Succeeded, status: "True"` + at
		undone  = `{type: Succeeded, status: "False"` + at
		failed  = `{type: Failed, status: "True"` + at
		mended  = `{type: Failed, status: "False"` + at
	)
	for _, tc := range []struct {
		name, old, status string
		want              []string
	}{
		{"begun", `{}`, `{resourceVersion: "5", conditions: [` + running + `]}`, nil},
		{"succeeded", `{resourceVersion: "5", conditions: [` + running + `]}`, `{resourceVersion: "5", conditions: [` + stopped + `, ` + done + `]}`, nil},
		{"failed at once", `{}`, `{conditions: [` + failed + `]}`, nil},
		{"a version that is none", `{}`, `{resourceVersion: "05"}`, []string{"status.resourceVersion: Invalid value: \"05\": resource version is not well formed"}},
		{"a negative version", `{}`, `{resourceVersion: "-5"}`, []string{"status.resourceVersion: Invalid value"}},
		{"another version", `{resourceVersion: "5"}`, `{resourceVersion: "6"}`, []string{"status.resourceVersion: Invalid value: \"6\": field is immutable"}},
		{"both", `{}`, `{conditions: [` + done + `, ` + failed + `]}`, []string{"status.conditions: Invalid value"}},
		{"running on after success", `{}`, `{conditions: [` + done + `, ` + running + `]}`, []string{"status.conditions: Invalid value"}},
		{"running on after failure", `{}`, `{conditions: [` + failed + `, ` + running + `]}`, []string{"status.conditions: Invalid value"}},
		{"success undone", `{conditions: [` + done + `]}`, `{conditions: [` + undone + `]}`, []string{"status.conditions: Invalid value"}},
		{"failure undone", `{conditions: [` + failed + `]}`, `{conditions: [` + mended + `]}`, []string{"status.conditions: Invalid value"}},
		{"success lost", `{conditions: [` + done + `]}`, `{}`, []string{"status.conditions: Invalid value"}},
		{"one twice", `{}`, `{conditions: [` + running + `, ` + running + `]}`, []string{"status.conditions[1]: Duplicate value"}},
		{"no reason", `{}`, `{conditions: [{type: Running, status: "True", lastTransitionTime: "2026-11-22T10:00:00Z"}]}`, []string{"status.conditions[0].reason: Required value"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			told(t, StorageVersionMigrationStatus(read[migration](t, "status: "+tc.status), read[migration](t, "status: "+tc.old)), tc.want)
		})
	}
}
