package resources

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/quota"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func resourceQuotas(deps Deps) registry.Row[*corev1.ResourceQuota] {
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
		Status: &registry.Strategy[*corev1.ResourceQuota]{
			Update: func(_ context.Context, q, old *corev1.ResourceQuota) { q.Spec = old.Spec },
			Reset:  []string{"spec"},
		},
		Endpoints: func(row *registry.Endpoints[*corev1.ResourceQuota]) map[string]rest.Storage {
			return map[string]rest.Storage{"": &quotaStore{row.Main, deps.Lookup}}
		},
	}
}

// quotaStore returns quotas with their usage at the time of reading. The usage is computed each
// time, so it cannot drift, and no controller has to correct it.
type quotaStore struct {
	*registry.Store
	lookup *registry.Lookup
}

// Get implements rest.Getter.
func (s *quotaStore) Get(ctx context.Context, name string, opts *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.Store.Get(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return obj, s.fill(ctx, obj.(*corev1.ResourceQuota))
}

// List implements rest.Lister.
func (s *quotaStore) List(ctx context.Context, opts *internalversion.ListOptions) (runtime.Object, error) {
	obj, err := s.Store.List(ctx, opts)
	if err != nil {
		return nil, err
	}
	quotas := obj.(*corev1.ResourceQuotaList)
	for i := range quotas.Items {
		if err := s.fill(ctx, &quotas.Items[i]); err != nil {
			return nil, err
		}
	}
	return quotas, nil
}

func (s *quotaStore) fill(ctx context.Context, q *corev1.ResourceQuota) error {
	used, err := quota.Used(ctx, s.lookup, q, nil, time.Now())
	if err != nil {
		return err
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: used}
	return nil
}
