package resources

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func podDisruptionBudgets() registry.Row[*policyv1.PodDisruptionBudget] {
	type pdb = *policyv1.PodDisruptionBudget
	return registry.Row[pdb]{
		Resource:   gvr(policyv1.SchemeGroupVersion, "poddisruptionbudgets"),
		Kind:       "PodDisruptionBudget",
		Singular:   "poddisruptionbudget",
		ShortNames: []string{"pdb"},
		Namespaced: true,
		New:        func() pdb { return &policyv1.PodDisruptionBudget{} },
		NewList:    list[policyv1.PodDisruptionBudgetList](),
		Table:      printers.PodDisruptionBudgets,
		Strategy: registry.Strategy[pdb]{
			Create: func(_ context.Context, b pdb) { b.Status, b.Generation = policyv1.PodDisruptionBudgetStatus{}, 1 },
			Update: func(_ context.Context, b, old pdb) {
				b.Status = old.Status
				bump(b, old, !apiequality.Semantic.DeepEqual(b.Spec, old.Spec))
			},
			Validate:              onCreate(validation.PodDisruptionBudget),
			ValidateUpdate:        always(validation.PodDisruptionBudget),
			Reset:                 []string{"status"},
			NoUnconditionalUpdate: true,
		},
		Status: &registry.Strategy[pdb]{
			Update:                func(_ context.Context, b, old pdb) { b.Spec = old.Spec },
			ValidateUpdate:        always(validation.PodDisruptionBudgetStatus),
			Reset:                 []string{"spec"},
			NoUnconditionalUpdate: true,
		},
	}
}
