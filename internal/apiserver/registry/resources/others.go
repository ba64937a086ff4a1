package resources

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func leases() registry.Row[*coordinationv1.Lease] {
	return registry.Row[*coordinationv1.Lease]{
		Resource:   gvr(coordinationv1.SchemeGroupVersion, "leases"),
		Kind:       "Lease",
		Singular:   "lease",
		Namespaced: true,
		New:        func() *coordinationv1.Lease { return &coordinationv1.Lease{} },
		NewList:    list[coordinationv1.LeaseList](),
		Table:      printers.Leases,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*coordinationv1.Lease]{
			Validate:              onCreate(validation.Lease),
			ValidateUpdate:        always(validation.Lease),
			CreateOnUpdate:        true,
			NoUnconditionalUpdate: true,
		},
	}
}

func endpointSlices() registry.Row[*discoveryv1.EndpointSlice] {
	return registry.Row[*discoveryv1.EndpointSlice]{
		Resource:   gvr(discoveryv1.SchemeGroupVersion, "endpointslices"),
		Kind:       "EndpointSlice",
		Singular:   "endpointslice",
		Namespaced: true,
		New:        func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} },
		NewList:    list[discoveryv1.EndpointSliceList](),
		Table:      printers.EndpointSlices,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*discoveryv1.EndpointSlice]{
			Create: func(_ context.Context, s *discoveryv1.EndpointSlice) { s.Generation = 1 },
			Update: func(_ context.Context, s, old *discoveryv1.EndpointSlice) {
				a, b := *s, *old
				a.ObjectMeta, b.ObjectMeta = old.ObjectMeta, old.ObjectMeta
				bump(s, old, !apiequality.Semantic.DeepEqual(&a, &b))
			},
			Validate:       exceptOwn(onCreate(validation.EndpointSlice)),
			ValidateUpdate: exceptOwnUpdate(onUpdate(validation.EndpointSliceUpdate)),
		},
	}
}

func runtimeClasses() registry.Row[*nodev1.RuntimeClass] {
	return registry.Row[*nodev1.RuntimeClass]{
		Resource:  gvr(nodev1.SchemeGroupVersion, "runtimeclasses"),
		Kind:      "RuntimeClass",
		Singular:  "runtimeclass",
		New:       func() *nodev1.RuntimeClass { return &nodev1.RuntimeClass{} },
		NewList:   list[nodev1.RuntimeClassList](),
		Table:     printers.RuntimeClasses,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*nodev1.RuntimeClass]{
			Validate:       onCreate(validation.RuntimeClass),
			ValidateUpdate: onUpdate(validation.RuntimeClassUpdate),
		},
	}
}

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
