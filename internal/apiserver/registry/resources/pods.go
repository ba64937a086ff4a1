package resources

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/pod"
)

func pods(Deps) registry.Row[*corev1.Pod] {
	return registry.Row[*corev1.Pod]{
		Resource:   gvr(corev1.SchemeGroupVersion, "pods"),
		Kind:       "Pod",
		Singular:   "pod",
		ShortNames: []string{"po"},
		Categories: []string{"all"},
		Namespaced: true,
		New:        func() *corev1.Pod { return &corev1.Pod{} },
		NewList:    list[corev1.PodList](),
		CheckName:  validation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.Pod]{
			Create:   pod.PrepareCreate,
			Update:   pod.PrepareUpdate,
			Graceful: pod.Graceful,
			Reset:    []string{"status"},
		},
		Status: &registry.Strategy[*corev1.Pod]{
			Update: pod.PrepareStatus,
			Reset:  []string{"spec"},
		},
		Fields:      pod.Fields,
		FieldLabels: pod.FieldLabels,
		Index:       "spec.nodeName",
		Endpoints: func(main *registry.Store, _ *registry.StatusStore) map[string]rest.Storage {
			return map[string]rest.Storage{"binding": pod.NewBinding(main.Store)}
		},
	}
}
