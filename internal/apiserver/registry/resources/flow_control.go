package resources

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func flowSchemas() registry.Row[*flowcontrolv1.FlowSchema] {
	type flow = *flowcontrolv1.FlowSchema
	return registry.Row[flow]{
		Resource:  gvr(flowcontrolv1.SchemeGroupVersion, "flowschemas"),
		Kind:      "FlowSchema",
		Singular:  "flowschema",
		New:       func() flow { return &flowcontrolv1.FlowSchema{} },
		NewList:   list[flowcontrolv1.FlowSchemaList](),
		Table:     printers.FlowSchemas,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[flow]{
			Create: func(_ context.Context, s flow) { s.Status, s.Generation = flowcontrolv1.FlowSchemaStatus{}, 1 },
			Update: func(_ context.Context, s, old flow) {
				s.Status = old.Status
				bump(s, old, !apiequality.Semantic.DeepEqual(s.Spec, old.Spec))
			},
			Validate:       onCreate(validation.FlowSchema),
			ValidateUpdate: always(validation.FlowSchema),
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[flow]{
			Update: func(_ context.Context, s, old flow) {
				s.Spec = old.Spec
				keepMeta(&s.ObjectMeta, &old.ObjectMeta)
			},
			ValidateUpdate: always(validation.FlowSchemaStatus),
			Reset:          []string{"metadata", "spec"},
		},
	}
}

// keepMeta keeps all of an object's metadata but who manages its fields.
func keepMeta(now, was *metav1.ObjectMeta) {
	managed := now.ManagedFields
	*now = *was
	now.ManagedFields = managed
}

func priorityLevelConfigurations() registry.Row[*flowcontrolv1.PriorityLevelConfiguration] {
	type level = *flowcontrolv1.PriorityLevelConfiguration
	return registry.Row[level]{
		Resource:  gvr(flowcontrolv1.SchemeGroupVersion, "prioritylevelconfigurations"),
		Kind:      "PriorityLevelConfiguration",
		Singular:  "prioritylevelconfiguration",
		New:       func() level { return &flowcontrolv1.PriorityLevelConfiguration{} },
		NewList:   list[flowcontrolv1.PriorityLevelConfigurationList](),
		Table:     printers.PriorityLevelConfigurations,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[level]{
			Create: func(_ context.Context, l level) {
				l.Status, l.Generation = flowcontrolv1.PriorityLevelConfigurationStatus{}, 1
			},
			Update: func(_ context.Context, l, old level) {
				l.Status = old.Status
				bump(l, old, !apiequality.Semantic.DeepEqual(l.Spec, old.Spec))
			},
			Validate:       onCreate(validation.PriorityLevelConfiguration),
			ValidateUpdate: always(validation.PriorityLevelConfiguration),
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[level]{
			Update: func(_ context.Context, l, old level) {
				l.Spec = old.Spec
				keepMeta(&l.ObjectMeta, &old.ObjectMeta)
			},
			ValidateUpdate: always(validation.PriorityLevelConfigurationStatus),
			Reset:          []string{"metadata", "spec"},
		},
	}
}
