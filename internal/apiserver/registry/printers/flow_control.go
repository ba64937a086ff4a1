package printers

import (
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

// FlowSchemas is the table of flow schemas.
var FlowSchemas = registry.Table[*flowcontrolv1.FlowSchema]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("PriorityLevel", flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
		column("MatchingPrecedence", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["matchingPrecedence"]),
		column("DistinguisherMethod", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["distinguisherMethod"]),
		ageColumn,
		column("MissingPL", "references a broken or non-existent PriorityLevelConfiguration"),
	},
	Cells: func(s *flowcontrolv1.FlowSchema, now time.Time) []any {
		method, missing := none, "?"
		if m := s.Spec.DistinguisherMethod; m != nil {
			method = string(m.Type)
		}
		for _, c := range s.Status.Conditions {
			if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
				missing = string(c.Status)
			}
		}
		return []any{s.Name, s.Spec.PriorityLevelConfiguration.Name, int64(s.Spec.MatchingPrecedence), method, age(s, now), missing}
	},
}

// PriorityLevelConfigurations is the table of priority levels.
var PriorityLevelConfigurations = registry.Table[*flowcontrolv1.PriorityLevelConfiguration]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Type", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
		column("NominalConcurrencyShares", flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
		column("Queues", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["queues"]),
		column("HandSize", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["handSize"]),
		column("QueueLengthLimit", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["queueLengthLimit"]),
		ageColumn,
	},
	Cells: func(c *flowcontrolv1.PriorityLevelConfiguration, now time.Time) []any {
		var shares, queues, hand, length any = none, none, none, none
		if l := c.Spec.Limited; l != nil {
			if n := l.NominalConcurrencyShares; n != nil {
				shares = int64(*n)
			}
			if q := l.LimitResponse.Queuing; q != nil {
				queues, hand, length = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
			}
		}
		return []any{c.Name, string(c.Spec.Type), shares, queues, hand, length, age(c, now)}
	},
}
