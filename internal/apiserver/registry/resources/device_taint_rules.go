package resources

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func deviceTaintRules() registry.Row[*resourcev1.DeviceTaintRule] {
	type rule = *resourcev1.DeviceTaintRule
	return registry.Row[rule]{
		Resource:  gvr(resourcev1.SchemeGroupVersion, "devicetaintrules"),
		Kind:      "DeviceTaintRule",
		Singular:  "devicetaintrule",
		New:       func() rule { return &resourcev1.DeviceTaintRule{} },
		NewList:   list[resourcev1.DeviceTaintRuleList](),
		Table:     printers.DeviceTaintRules,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[rule]{
			Create: func(_ context.Context, r rule) {
				r.Status = resourcev1.DeviceTaintRuleStatus{}
				r.Generation = 1
			},
			Update: func(_ context.Context, r, old rule) {
				r.Status = old.Status
				// For how long claims tolerate a taint counts from when it got its effect.
				if t, was := &r.Spec.Taint, &old.Spec.Taint; t.Effect != was.Effect && t.TimeAdded.Equal(was.TimeAdded) {
					t.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
				}
				bump(r, old, !apiequality.Semantic.DeepEqual(r.Spec, old.Spec))
			},
			Validate:       onCreate(validation.DeviceTaintRule),
			ValidateUpdate: onUpdate(validation.DeviceTaintRuleUpdate),
			Reset:          []string{"status"},

			NoUnconditionalUpdate: true,
		},
		Status: &registry.Strategy[rule]{
			Update: func(_ context.Context, r, old rule) {
				r.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
			},
			ValidateUpdate: onUpdate(validation.DeviceTaintRuleStatusUpdate),
			Reset:          []string{"metadata", "spec"},

			NoUnconditionalUpdate: true,
		},
	}
}
