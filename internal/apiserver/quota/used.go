package quota

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	"wherry.dev/internal/apiserver/registry"
)

var everything = storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}

// Used returns what the quota's namespace uses now of each resource that it limits, and
// the UIDs of the objects it counted.
func Used(ctx context.Context, lookup *registry.Lookup, q *corev1.ResourceQuota) (corev1.ResourceList, map[types.UID]bool, error) {
	used, seen := corev1.ResourceList{}, map[types.UID]bool{}
	for _, resource := range counted(q) {
		if lookup.Store(resource) == nil {
			continue
		}
		list, err := registry.ListLive[runtime.Object](ctx, lookup, resource, q.Namespace, everything)
		if err != nil {
			return nil, nil, fmt.Errorf("usage of quota %s/%s: %w", q.Namespace, q.Name, err)
		}
		err = meta.EachListItem(list, func(obj runtime.Object) error {
			m, err := meta.Accessor(obj)
			if err != nil {
				return err
			}
			seen[m.GetUID()] = true
			if Matches(q, obj) {
				Add(used, Of(resource, obj))
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	out := corev1.ResourceList{}
	for name := range q.Spec.Hard {
		out[name] = used[name]
	}
	return out, seen, nil
}

// counted lists the resources whose objects use what the quota limits.
func counted(q *corev1.ResourceQuota) []schema.GroupResource {
	set := map[schema.GroupResource]bool{}
	for name := range q.Spec.Hard {
		set[resourceOf(string(name))] = true
	}
	out := make([]schema.GroupResource, 0, len(set))
	for r := range set {
		out = append(out, r)
	}
	return out
}

func resourceOf(name string) schema.GroupResource {
	if count, ok := strings.CutPrefix(name, countPrefix); ok {
		return schema.ParseGroupResource(count)
	}
	switch {
	case strings.HasPrefix(name, "services"):
		return schema.GroupResource{Resource: "services"}
	case name == "requests.storage", name == "persistentvolumeclaims", strings.Contains(name, classSuffix):
		return schema.GroupResource{Resource: "persistentvolumeclaims"}
	case name == "configmaps", name == "secrets", name == "resourcequotas":
		return schema.GroupResource{Resource: name}
	}
	return schema.GroupResource{Resource: "pods"}
}
