package resources

import (
	"context"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/scheme"
)

// horizontalPodAutoscalers are stored as v2, and served as v1 too.
func horizontalPodAutoscalers() registry.Row[*autoscalingv2.HorizontalPodAutoscaler] {
	type hpa = *autoscalingv2.HorizontalPodAutoscaler
	return registry.Row[hpa]{
		Resource:   gvr(autoscalingv2.SchemeGroupVersion, "horizontalpodautoscalers"),
		Also:       []schema.GroupVersion{autoscalingv1.SchemeGroupVersion},
		Kind:       "HorizontalPodAutoscaler",
		Singular:   "horizontalpodautoscaler",
		ShortNames: []string{"hpa"},
		Categories: []string{"all"},
		Namespaced: true,
		New:        func() hpa { return &autoscalingv2.HorizontalPodAutoscaler{} },
		NewList:    list[autoscalingv2.HorizontalPodAutoscalerList](),
		Table:      printers.HorizontalPodAutoscalers,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[hpa]{
			Create: func(_ context.Context, a hpa) {
				a.Status, a.Generation = autoscalingv2.HorizontalPodAutoscalerStatus{}, 1
				scheme.DropAutoscalerAnnotations(a)
			},
			Update: func(_ context.Context, a, old hpa) {
				a.Status = old.Status
				scheme.DropAutoscalerAnnotations(a)
				bump(a, old, !apiequality.Semantic.DeepEqual(a.Spec, old.Spec))
			},
			Validate:       onCreate(validation.HorizontalPodAutoscaler),
			ValidateUpdate: onUpdate(validation.HorizontalPodAutoscalerUpdate),
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[hpa]{
			Update: func(_ context.Context, a, old hpa) {
				a.Spec = old.Spec
				scheme.DropAutoscalerAnnotations(a)
			},
			ValidateUpdate: always(validation.HorizontalPodAutoscalerStatus),
			Reset:          []string{"spec"},
		},
	}
}
