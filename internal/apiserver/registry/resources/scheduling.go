package resources

import (
	"context"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func priorityClasses() registry.Row[*schedulingv1.PriorityClass] {
	return registry.Row[*schedulingv1.PriorityClass]{
		Resource:   gvr(schedulingv1.SchemeGroupVersion, "priorityclasses"),
		Kind:       "PriorityClass",
		Singular:   "priorityclass",
		ShortNames: []string{"pc"},
		New:        func() *schedulingv1.PriorityClass { return &schedulingv1.PriorityClass{} },
		NewList:    list[schedulingv1.PriorityClassList](),
		Table:      printers.PriorityClasses,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*schedulingv1.PriorityClass]{
			Create:         func(_ context.Context, c *schedulingv1.PriorityClass) { c.Generation = 1 },
			Validate:       onCreate(validation.PriorityClass),
			ValidateUpdate: onUpdate(validation.PriorityClassUpdate),
		},
	}
}
