package printers

import (
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
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

// Workloads is the table of workloads.
var Workloads = registry.Table[*schedulingv1beta1.Workload]{
	Columns: []metav1.TableColumnDefinition{nameColumn, ageColumn},
	Cells:   func(w *schedulingv1beta1.Workload, now time.Time) []any { return []any{w.Name, age(w, now)} },
}

// PodGroups is the table of pod groups.
var PodGroups = registry.Table[*schedulingv1beta1.PodGroup]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Policy", schedulingv1beta1.PodGroupSpec{}.SwaggerDoc()["schedulingPolicy"]),
		column("Workload", "Name of the referenced Workload object"),
		column("Status", "Status of the PodGroup"),
		ageColumn,
	},
	Cells: func(g *schedulingv1beta1.PodGroup, now time.Time) []any {
		policy, workload := "Basic", "<none>"
		if g.Spec.SchedulingPolicy.Gang != nil {
			policy = "Gang"
		}
		if g.Spec.WorkloadRef != nil {
			workload = g.Spec.WorkloadRef.WorkloadName
		}
		return []any{g.Name, policy, workload, groupStatus(g), age(g, now)}
	},
}

func groupStatus(g *schedulingv1beta1.PodGroup) string {
	scheduled := meta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
	switch target := meta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.DisruptionTarget); {
	case target != nil:
		return target.Reason
	case scheduled == nil:
		return "Pending"
	case scheduled.Status == metav1.ConditionTrue:
		return "Scheduled"
	}
	return "Unschedulable"
}
