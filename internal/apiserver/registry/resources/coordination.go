package resources

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
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
			Create: func(_ context.Context, l *coordinationv1.Lease) { l.Spec.Strategy, l.Spec.PreferredHolder = nil, nil },
			Update: func(_ context.Context, l, old *coordinationv1.Lease) { // of coordinated leader election, which is off by default
				if old.Spec.Strategy == nil {
					l.Spec.Strategy = nil
				}
				if old.Spec.PreferredHolder == nil {
					l.Spec.PreferredHolder = nil
				}
			},
			Validate:              onCreate(validation.Lease),
			ValidateUpdate:        always(validation.Lease),
			CreateOnUpdate:        true,
			NoUnconditionalUpdate: true,
		},
	}
}
