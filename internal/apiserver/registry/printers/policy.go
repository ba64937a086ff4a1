package printers

import (
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/apiserver/registry"
)

// PodDisruptionBudgets is the table of budgets.
var PodDisruptionBudgets = registry.Table[*policyv1.PodDisruptionBudget]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Min Available", "The minimum number of pods that must be available."),
		column("Max Unavailable", "The maximum number of pods that may be unavailable."),
		integer("Allowed Disruptions", "Calculated number of pods that may be disrupted at this time."),
		ageColumn,
	},
	Cells: func(b *policyv1.PodDisruptionBudget, now time.Time) []any {
		return []any{b.Name, limit(b.Spec.MinAvailable), limit(b.Spec.MaxUnavailable), int64(b.Status.DisruptionsAllowed), age(b, now)}
	},
}

func limit(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}
