package resources

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/warnings"
)

func replicationControllers(deps Deps) registry.Row[*corev1.ReplicationController] {
	type rc = *corev1.ReplicationController
	template := func(r rc) *corev1.PodTemplateSpec {
		if r.Spec.Template == nil {
			return &corev1.PodTemplateSpec{} // validation refuses it
		}
		return r.Spec.Template
	}
	return registry.Row[rc]{
		Resource:   gvr(corev1.SchemeGroupVersion, "replicationcontrollers"),
		Kind:       "ReplicationController",
		Singular:   "replicationcontroller",
		ShortNames: []string{"rc"},
		Categories: []string{"all"},
		Namespaced: true,
		New:        func() rc { return &corev1.ReplicationController{} },
		NewList:    list[corev1.ReplicationControllerList](),
		Table:      printers.ReplicationControllers,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[rc]{
			Drop:   dropIn(deps.Features, template),
			Create: func(_ context.Context, r rc) { r.Status, r.Generation = corev1.ReplicationControllerStatus{}, 1 },
			Update: func(_ context.Context, r, old rc) {
				r.Status = old.Status
				bump(r, old, !apiequality.Semantic.DeepEqual(r.Spec, old.Spec))
			},
			Validate:       onCreate(validation.ReplicationController),
			ValidateUpdate: always(validation.ReplicationController),
			WarnNew:        warnOfNameAndTemplate(template),
			WarnUpdate:     warnOfChangedTemplate(template),
			Garbage:        rest.OrphanDependents, // as it has always been in v1
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[rc]{
			Update:         func(_ context.Context, r, old rc) { r.Spec = old.Spec },
			ValidateUpdate: always(validation.ReplicationControllerStatus),
			Reset:          []string{"spec"},
		},
		Scale: &registry.Scale[rc]{
			Replicas: func(r rc) **int32 { return &r.Spec.Replicas },
			Observed: func(r rc) int32 { return r.Status.Replicas },
			Selector: func(r rc) (labels.Selector, error) { return labels.SelectorFromSet(r.Spec.Selector), nil },
			Table:    printers.Scales,
		},
		Fields: func(r rc) fields.Set {
			return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
		},
		FieldLabels: []string{"status.replicas"},
	}
}

func podTemplates(deps Deps) registry.Row[*corev1.PodTemplate] {
	type template = *corev1.PodTemplate
	at := field.NewPath("template")
	return registry.Row[template]{
		Resource:   gvr(corev1.SchemeGroupVersion, "podtemplates"),
		Kind:       "PodTemplate",
		Singular:   "podtemplate",
		Namespaced: true,
		New:        func() template { return &corev1.PodTemplate{} },
		NewList:    list[corev1.PodTemplateList](),
		Table:      printers.PodTemplates,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[template]{
			Drop:   dropIn(deps.Features, func(t template) *corev1.PodTemplateSpec { return &t.Template }),
			Create: func(_ context.Context, t template) { t.Generation = 1 },
			Update: func(_ context.Context, t, old template) {
				bump(t, old, !apiequality.Semantic.DeepEqual(t.Template, old.Template))
			},
			Validate:       onCreate(validation.PodTemplate),
			ValidateUpdate: always(validation.PodTemplate),
			WarnNew:        func(_ context.Context, t template) []string { return warnings.Template(at, &t.Template) },
			WarnUpdate: func(_ context.Context, t, old template) []string {
				if t.Generation == old.Generation {
					return nil
				}
				return warnings.Template(at, &t.Template)
			},
		},
		ReturnDeleted: true,
	}
}
