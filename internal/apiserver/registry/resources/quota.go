package resources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func resourceQuotas() registry.Row[*corev1.ResourceQuota] {
	return registry.Row[*corev1.ResourceQuota]{
		Resource:   gvr(corev1.SchemeGroupVersion, "resourcequotas"),
		Kind:       "ResourceQuota",
		Singular:   "resourcequota",
		ShortNames: []string{"quota"},
		Namespaced: true,
		New:        func() *corev1.ResourceQuota { return &corev1.ResourceQuota{} },
		NewList:    list[corev1.ResourceQuotaList](),
		Table:      printers.ResourceQuotas,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.ResourceQuota]{
			Create:         func(_ context.Context, q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} },
			Update:         func(_ context.Context, q, old *corev1.ResourceQuota) { q.Status = old.Status },
			Validate:       onCreate(validation.ResourceQuota),
			ValidateUpdate: onUpdate(validation.ResourceQuotaUpdate),
			Reset:          []string{"status"},
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[*corev1.ResourceQuota]{
			Update:         func(_ context.Context, q, old *corev1.ResourceQuota) { q.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.ResourceQuotaStatusUpdate),
			Reset:          []string{"spec"},
		},
	}
}
