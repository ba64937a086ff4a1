package resources

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

// dropTopology clears what only versions before v1 had.
func dropTopology(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].DeprecatedTopology = nil
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
			Create: func(_ context.Context, s *discoveryv1.EndpointSlice) {
				s.Generation = 1
				dropTopology(s)
			},
			Update: func(_ context.Context, s, old *discoveryv1.EndpointSlice) {
				dropTopology(s)
				a, b := *s, *old
				a.ObjectMeta, a.TypeMeta = b.ObjectMeta, b.TypeMeta
				bump(s, old, !apiequality.Semantic.DeepEqual(&a, &b) || !apiequality.Semantic.DeepEqual(s.Labels, old.Labels))
			},
			Validate:       exceptOwn(onCreate(validation.EndpointSlice)),
			ValidateUpdate: exceptOwnUpdate(onUpdate(validation.EndpointSliceUpdate)),
		},
	}
}
