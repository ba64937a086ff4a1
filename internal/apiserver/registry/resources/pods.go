package resources

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubectl/pkg/util/qos"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/pod"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/warnings"
)

func pods(deps Deps) registry.Row[*corev1.Pod] {
	return registry.Row[*corev1.Pod]{
		Resource:   gvr(corev1.SchemeGroupVersion, "pods"),
		Kind:       "Pod",
		Singular:   "pod",
		ShortNames: []string{"po"},
		Categories: []string{"all"},
		Namespaced: true,
		New:        func() *corev1.Pod { return &corev1.Pod{} },
		NewList:    list[corev1.PodList](),
		Table:      printers.Pods,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.Pod]{
			Drop:           deps.Features.Pod,
			Create:         pod.PrepareCreate,
			Update:         pod.PrepareUpdate,
			Validate:       onCreate(validation.PodCreate),
			ValidateUpdate: onUpdate(validation.PodUpdate),
			Warn:           warnings.Pod,
			WarnNew:        warnings.PodName,
			Graceful:       pod.Graceful,
			Reset:          []string{"status"},
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[*corev1.Pod]{
			Drop:           deps.Features.PodStatus,
			Update:         pod.PrepareStatus,
			ValidateUpdate: onUpdate(validation.PodStatus),
			Reset:          []string{"spec", "metadata.deletionTimestamp", "metadata.ownerReferences"},
		},
		Fields:      pod.Fields,
		FieldLabels: pod.FieldLabels,
		Index: &registry.Index[*corev1.Pod]{
			Field: "spec.nodeName", Value: func(p *corev1.Pod) string { return p.Spec.NodeName },
		},
		Endpoints: func(row *registry.Endpoints[*corev1.Pod]) map[string]rest.Storage {
			out := map[string]rest.Storage{
				"":         &pod.Store{Store: row.Main},
				"status":   &pod.StatusStore{StatusStore: row.Status},
				"binding":  pod.NewBinding(row.Main.Store),
				"log":      pod.NewLog(row.Main, deps.Kubelets),
				"eviction": pod.NewEviction(row.Main.Store, row.Status.Store(), deps.Lookup),
				"ephemeralcontainers": row.Update(registry.Strategy[*corev1.Pod]{
					Drop:           deps.Features.Pod,
					Update:         pod.PrepareEphemeralContainers,
					ValidateUpdate: onUpdate(validation.PodEphemeralContainers),
				}),
				"resize": row.Update(registry.Strategy[*corev1.Pod]{
					Update: pod.PrepareResize,
					ValidateUpdate: func(_ context.Context, p, old *corev1.Pod) field.ErrorList {
						return validation.PodResize(p, old, qos.ComputePodQOS(p))
					},
				}),
			}
			out["proxy"] = pod.NewProxy(row.Main, deps.Kubelets.Others())
			maps.Copy(out, pod.NewConnects(row.Main, deps.Kubelets, deps.Auth.Authorizer))
			return out
		},
	}
}
