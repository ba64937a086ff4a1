package printers

import (
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

// DeviceClasses is the table of classes of devices.
var DeviceClasses = registry.Table[*resourcev1.DeviceClass]{
	Columns: []metav1.TableColumnDefinition{nameColumn, ageColumn},
	Cells:   func(c *resourcev1.DeviceClass, now time.Time) []any { return []any{c.Name, age(c, now)} },
}

// ResourceClaims is the table of claims for devices.
var ResourceClaims = registry.Table[*resourcev1.ResourceClaim]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, column("State", "A summary of the current state (allocated, pending, reserved, etc.)."), ageColumn,
	},
	Cells: func(c *resourcev1.ResourceClaim, now time.Time) []any {
		return []any{c.Name, claimState(c), age(c, now)}
	},
}

func claimState(c *resourcev1.ResourceClaim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation != nil && len(c.Status.ReservedFor) > 0:
		states = append(states, "allocated", "reserved")
	case c.Status.Allocation != nil:
		states = append(states, "allocated")
	case c.DeletionTimestamp == nil:
		states = append(states, "pending")
	}
	return strings.Join(states, ",")
}

// ResourceClaimTemplates is the table of what claims are made from.
var ResourceClaimTemplates = registry.Table[*resourcev1.ResourceClaimTemplate]{
	Columns: []metav1.TableColumnDefinition{nameColumn, ageColumn},
	Cells:   func(t *resourcev1.ResourceClaimTemplate, now time.Time) []any { return []any{t.Name, age(t, now)} },
}

// ResourceSlices is the table of slices of devices.
var ResourceSlices = registry.Table[*resourcev1.ResourceSlice]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Node", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["nodeName"]),
		column("Driver", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["driver"]),
		column("Pool", resourcev1.ResourcePool{}.SwaggerDoc()["name"]),
		ageColumn,
	},
	Cells: func(s *resourcev1.ResourceSlice, now time.Time) []any {
		return []any{s.Name, or(s.Spec.NodeName, ""), s.Spec.Driver, s.Spec.Pool.Name, age(s, now)}
	},
}

// DeviceTaintRules is the table of rules that taint devices.
var DeviceTaintRules = registry.Table[*resourcev1.DeviceTaintRule]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Key", resourcev1.DeviceTaint{}.SwaggerDoc()["key"]),
		column("Value", resourcev1.DeviceTaint{}.SwaggerDoc()["value"]),
		column("Effect", resourcev1.DeviceTaint{}.SwaggerDoc()["effect"]),
		column("TimeAdded", resourcev1.DeviceTaint{}.SwaggerDoc()["timeAdded"]),
		ageColumn,
	},
	Cells: func(r *resourcev1.DeviceTaintRule, now time.Time) []any {
		t, added := r.Spec.Taint, ""
		if t.TimeAdded != nil {
			added = since(t.TimeAdded.Time, now)
		}
		return []any{r.Name, t.Key, t.Value, string(t.Effect), added, age(r, now)}
	},
}
