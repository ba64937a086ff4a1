package resources

import (
	"context"
	"errors"

	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/api/gated"
	podrules "wherry.dev/internal/api/pods"
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
		Endpoints: func(row *registry.Endpoints[*schedulingv1.PriorityClass]) map[string]rest.Storage {
			return map[string]rest.Storage{"": &priorityClassStore{row.Main}}
		},
	}
}

// priorityClassStore keeps the classes of the system, on which the pods of every node rely.
type priorityClassStore struct{ *registry.Store }

// Delete implements rest.GracefulDeleter.
func (s *priorityClassStore) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if name == podrules.ClusterCritical || name == podrules.NodeCritical {
		return nil, false, apierrors.NewForbidden(s.DefaultQualifiedResource, name, errors.New("this is a system priority class and cannot be deleted"))
	}
	return s.Store.Delete(ctx, name, validate, opts)
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
