package resources

import (
	"context"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/warnings"
)

func replicaSets(deps Deps) registry.Row[*appsv1.ReplicaSet] {
	type rs = *appsv1.ReplicaSet
	template := func(r rs) *corev1.PodTemplateSpec { return &r.Spec.Template }
	return registry.Row[rs]{
		Resource:   gvr(appsv1.SchemeGroupVersion, "replicasets"),
		Kind:       "ReplicaSet",
		Singular:   "replicaset",
		ShortNames: []string{"rs"},
		Categories: []string{"all"},
		Namespaced: true,
		Traced:     true,
		New:        func() rs { return &appsv1.ReplicaSet{} },
		NewList:    list[appsv1.ReplicaSetList](),
		Table:      printers.ReplicaSets,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[rs]{
			Drop:   dropIn(deps.Features, template),
			Create: func(_ context.Context, r rs) { r.Status, r.Generation = appsv1.ReplicaSetStatus{}, 1 },
			Update: func(_ context.Context, r, old rs) {
				r.Status = old.Status
				bump(r, old, !apiequality.Semantic.DeepEqual(r.Spec, old.Spec))
			},
			Validate:       onCreate(validation.ReplicaSet),
			ValidateUpdate: onUpdate(validation.ReplicaSetUpdate),
			WarnNew:        warnOfNameAndTemplate(template),
			WarnUpdate:     warnOfChangedTemplate(template),
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[rs]{
			Update:         func(_ context.Context, r, old rs) { r.Spec = old.Spec },
			ValidateUpdate: always(validation.ReplicaSetStatus),
			Reset:          []string{"spec"},
		},
		Scale: &registry.Scale[rs]{
			Replicas: func(r rs) **int32 { return &r.Spec.Replicas },
			Observed: func(r rs) int32 { return r.Status.Replicas },
			Selector: func(r rs) (labels.Selector, error) { return metav1.LabelSelectorAsSelector(r.Spec.Selector) },
			Table:    printers.Scales,
		},
	}
}

func deployments(deps Deps) registry.Row[*appsv1.Deployment] {
	type deployment = *appsv1.Deployment
	template := func(d deployment) *corev1.PodTemplateSpec { return &d.Spec.Template }
	return registry.Row[deployment]{
		Resource:   gvr(appsv1.SchemeGroupVersion, "deployments"),
		Kind:       "Deployment",
		Singular:   "deployment",
		ShortNames: []string{"deploy"},
		Categories: []string{"all"},
		Namespaced: true,
		Traced:     true,
		New:        func() deployment { return &appsv1.Deployment{} },
		NewList:    list[appsv1.DeploymentList](),
		Table:      printers.Deployments,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[deployment]{
			Drop:   dropIn(deps.Features, template),
			Create: func(_ context.Context, d deployment) { d.Status, d.Generation = appsv1.DeploymentStatus{}, 1 },
			Update: func(_ context.Context, d, old deployment) {
				d.Status = old.Status
				// Annotations count, because they are copied to the replica sets.
				bump(d, old, !apiequality.Semantic.DeepEqual(d.Spec, old.Spec) ||
					!apiequality.Semantic.DeepEqual(d.Annotations, old.Annotations))
			},
			Validate:       onCreate(validation.Deployment),
			ValidateUpdate: onUpdate(validation.DeploymentUpdate),
			WarnNew:        warnOfNameAndTemplate(template),
			WarnUpdate:     warnOfChangedTemplate(template),
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[deployment]{
			Update: func(_ context.Context, d, old deployment) {
				d.Spec, d.Labels = old.Spec, old.Labels
			},
			ValidateUpdate: onUpdate(validation.DeploymentStatusUpdate),
			Reset:          []string{"spec", "metadata.labels"},
		},
		Scale: &registry.Scale[deployment]{
			Replicas: func(d deployment) **int32 { return &d.Spec.Replicas },
			Observed: func(d deployment) int32 { return d.Status.Replicas },
			Selector: func(d deployment) (labels.Selector, error) { return metav1.LabelSelectorAsSelector(d.Spec.Selector) },
			Table:    printers.Scales,
		},
	}
}

var templatePath = field.NewPath("spec", "template")

// warnOfNameAndTemplate warns of what is hardly intended in the pods of a new workload.
func warnOfNameAndTemplate[T registry.Object](template func(T) *corev1.PodTemplateSpec) func(context.Context, T) []string {
	return func(_ context.Context, obj T) []string {
		return append(warnings.OwnerName(obj.GetName()), warnings.Template(templatePath, template(obj))...)
	}
}

// warnOfChangedTemplate warns of the same when an update has made a new generation.
func warnOfChangedTemplate[T registry.Object](template func(T) *corev1.PodTemplateSpec) func(_ context.Context, obj, old T) []string {
	return func(_ context.Context, obj, old T) []string {
		if obj.GetGeneration() == old.GetGeneration() {
			return nil
		}
		return warnings.Template(templatePath, template(obj))
	}
}

func daemonSets(deps Deps) registry.Row[*appsv1.DaemonSet] {
	type ds = *appsv1.DaemonSet
	template := func(d ds) *corev1.PodTemplateSpec { return &d.Spec.Template }
	return registry.Row[ds]{
		Resource:   gvr(appsv1.SchemeGroupVersion, "daemonsets"),
		Kind:       "DaemonSet",
		Singular:   "daemonset",
		ShortNames: []string{"ds"},
		Categories: []string{"all"},
		Namespaced: true,
		Traced:     true,
		New:        func() ds { return &appsv1.DaemonSet{} },
		NewList:    list[appsv1.DaemonSetList](),
		Table:      printers.DaemonSets,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[ds]{
			Drop: dropIn(deps.Features, template),
			Create: func(_ context.Context, d ds) {
				d.Status, d.Generation = appsv1.DaemonSetStatus{}, 1
				setTemplateGeneration(d, max(templateGeneration(d), 1))
			},
			Update: func(_ context.Context, d, old ds) {
				d.Status = old.Status
				bump(d, old, !apiequality.Semantic.DeepEqual(d.Spec, old.Spec))
				n := templateGeneration(old)
				if !apiequality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
					n++
				}
				setTemplateGeneration(d, n)
			},
			Validate:       onCreate(validation.DaemonSet),
			ValidateUpdate: onUpdate(validation.DaemonSetUpdate),
			WarnNew: func(_ context.Context, d ds) []string {
				return warnings.Template(templatePath, &d.Spec.Template)
			},
			WarnUpdate: func(_ context.Context, d, old ds) []string {
				if templateGeneration(d) == templateGeneration(old) {
					return nil
				}
				return warnings.Template(templatePath, &d.Spec.Template)
			},
			Reset: []string{"status"},
		},
		Status: &registry.Strategy[ds]{
			Update: func(_ context.Context, d, old ds) {
				d.Spec = old.Spec
				setTemplateGeneration(d, templateGeneration(old))
			},
			ValidateUpdate: onUpdate(validation.DaemonSetStatusUpdate),
			Reset:          []string{"spec"},
		},
	}
}

// templateGeneration returns how often the template of a daemon set has changed. Only an annotation
// keeps it since apps/v1; clients cannot set it after creation.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, appsv1.DeprecatedTemplateGeneration, strconv.FormatInt(n, 10))
}

func statefulSets(deps Deps) registry.Row[*appsv1.StatefulSet] {
	type sts = *appsv1.StatefulSet
	template := func(s sts) *corev1.PodTemplateSpec { return &s.Spec.Template }
	return registry.Row[sts]{
		Resource:   gvr(appsv1.SchemeGroupVersion, "statefulsets"),
		Kind:       "StatefulSet",
		Singular:   "statefulset",
		ShortNames: []string{"sts"},
		Categories: []string{"all"},
		Namespaced: true,
		Traced:     true,
		New:        func() sts { return &appsv1.StatefulSet{} },
		NewList:    list[appsv1.StatefulSetList](),
		Table:      printers.StatefulSets,
		CheckName:  apivalidation.NameIsDNSLabel,
		Strategy: registry.Strategy[sts]{
			Drop:   dropIn(deps.Features, template),
			Create: func(_ context.Context, s sts) { s.Status, s.Generation = appsv1.StatefulSetStatus{}, 1 },
			Update: func(_ context.Context, s, old sts) {
				s.Status = old.Status
				bump(s, old, !apiequality.Semantic.DeepEqual(s.Spec, old.Spec))
			},
			Validate:       onCreate(validation.StatefulSet),
			ValidateUpdate: onUpdate(validation.StatefulSetUpdate),
			Warn:           endlessHistory,
			WarnNew: func(_ context.Context, s sts) []string {
				return warnings.Template(templatePath, &s.Spec.Template)
			},
			WarnUpdate: warnOfChangedTemplate(template),
			Reset:      []string{"status"},
		},
		Status: &registry.Strategy[sts]{
			Update:         func(_ context.Context, s, old sts) { s.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.StatefulSetStatusUpdate),
			Reset:          []string{"spec"},
		},
		Scale: &registry.Scale[sts]{
			Replicas: func(s sts) **int32 { return &s.Spec.Replicas },
			Observed: func(s sts) int32 { return s.Status.Replicas },
			Selector: func(s sts) (labels.Selector, error) { return metav1.LabelSelectorAsSelector(s.Spec.Selector) },
			Table:    printers.Scales,
		},
	}
}

func endlessHistory(_ context.Context, s *appsv1.StatefulSet) []string {
	if n := s.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		return []string{"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"}
	}
	return nil
}

func controllerRevisions() registry.Row[*appsv1.ControllerRevision] {
	return registry.Row[*appsv1.ControllerRevision]{
		Resource:   gvr(appsv1.SchemeGroupVersion, "controllerrevisions"),
		Kind:       "ControllerRevision",
		Singular:   "controllerrevision",
		Namespaced: true,
		New:        func() *appsv1.ControllerRevision { return &appsv1.ControllerRevision{} },
		NewList:    list[appsv1.ControllerRevisionList](),
		Table:      printers.ControllerRevisions,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*appsv1.ControllerRevision]{
			Validate:       onCreate(validation.ControllerRevision),
			ValidateUpdate: onUpdate(validation.ControllerRevisionUpdate),
		},
	}
}
