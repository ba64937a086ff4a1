package resources

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func leases(f gated.Features) registry.Row[*coordinationv1.Lease] {
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
			Drop:                  f.Lease,
			Validate:              onCreate(validation.Lease),
			ValidateUpdate:        always(validation.Lease),
			CreateOnUpdate:        true,
			NoUnconditionalUpdate: true,
		},
	}
}
