package printers

import (
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

// PriorityClasses is the table of priority classes.
var PriorityClasses = registry.Table[*schedulingv1.PriorityClass]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		registry.Column("Value", "integer", "", schedulingv1.PriorityClass{}.SwaggerDoc()["value"], false),
		registry.Column("Global-Default", "boolean", "", schedulingv1.PriorityClass{}.SwaggerDoc()["globalDefault"], false),
		ageColumn,
		column("PreemptionPolicy", schedulingv1.PriorityClass{}.SwaggerDoc()["preemptionPolicy"]),
	},
	Cells: func(c *schedulingv1.PriorityClass, now time.Time) []any {
		policy := ""
		if c.PreemptionPolicy != nil {
			policy = string(*c.PreemptionPolicy)
		}
		return []any{c.Name, int64(c.Value), c.GlobalDefault, age(c, now), policy}
	},
}
