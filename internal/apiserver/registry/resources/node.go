package resources

import (
	nodev1 "k8s.io/api/node/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/warnings"
)

func runtimeClasses() registry.Row[*nodev1.RuntimeClass] {
	return registry.Row[*nodev1.RuntimeClass]{
		Resource:  gvr(nodev1.SchemeGroupVersion, "runtimeclasses"),
		Kind:      "RuntimeClass",
		Singular:  "runtimeclass",
		New:       func() *nodev1.RuntimeClass { return &nodev1.RuntimeClass{} },
		NewList:   list[nodev1.RuntimeClassList](),
		Table:     printers.RuntimeClasses,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*nodev1.RuntimeClass]{
			Validate:       onCreate(validation.RuntimeClass),
			ValidateUpdate: onUpdate(validation.RuntimeClassUpdate),
			Warn:           warnings.RuntimeClass,

			NoUnconditionalUpdate: true,
		},
	}
}
