package resources

import (
	"context"

	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/gated"
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

func workloads(f gated.Features) registry.Row[*schedulingv1beta1.Workload] {
	type workload = *schedulingv1beta1.Workload
	return registry.Row[workload]{
		Resource:   gvr(schedulingv1beta1.SchemeGroupVersion, "workloads"),
		Kind:       "Workload",
		Singular:   "workload",
		Namespaced: true,
		New:        func() workload { return &schedulingv1beta1.Workload{} },
		NewList:    list[schedulingv1beta1.WorkloadList](),
		Table:      printers.Workloads,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[workload]{
			Drop:           f.Workload,
			Validate:       onCreate(validation.Workload),
			ValidateUpdate: onUpdate(validation.WorkloadUpdate),

			NoUnconditionalUpdate: true,
		},
	}
}

func podGroups(f gated.Features) registry.Row[*schedulingv1beta1.PodGroup] {
	type group = *schedulingv1beta1.PodGroup
	return registry.Row[group]{
		Resource:   gvr(schedulingv1beta1.SchemeGroupVersion, "podgroups"),
		Kind:       "PodGroup",
		Singular:   "podgroup",
		Namespaced: true,
		New:        func() group { return &schedulingv1beta1.PodGroup{} },
		NewList:    list[schedulingv1beta1.PodGroupList](),
		Table:      printers.PodGroups,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[group]{
			Drop:           f.PodGroup,
			Create:         func(_ context.Context, g group) { g.Status = schedulingv1beta1.PodGroupStatus{} },
			Update:         func(_ context.Context, g, old group) { g.Status = old.Status },
			Validate:       onCreate(validation.PodGroup),
			ValidateUpdate: onUpdate(validation.PodGroupUpdate),
			Reset:          []string{"status"},

			NoUnconditionalUpdate: true,
		},
		Status: &registry.Strategy[group]{
			Drop: f.PodGroupStatus,
			Update: func(_ context.Context, g, old group) {
				g.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(&g.ObjectMeta, &old.ObjectMeta)
			},
			ValidateUpdate: always(validation.PodGroupStatus),
			Reset:          []string{"metadata", "spec"},

			NoUnconditionalUpdate: true,
		},
	}
}
