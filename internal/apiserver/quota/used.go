package quota

import (
	"context"
	"fmt"
	"strings"
	"time"

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

// Coming is an object that was admitted and that storage may not have yet, or only in an older
// version.
type Coming struct {
	Resource schema.GroupResource
	UID      types.UID
	Object   runtime.Object
}

// Used returns what the quota's namespace uses now of each resource that it limits: what storage
// holds, and what is coming.
func Used(ctx context.Context, lookup *registry.Lookup, q *corev1.ResourceQuota, coming []Coming, now time.Time) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	for _, resource := range counted(q) {
		if lookup.Store(resource) == nil {
			continue
		}
		uses, err := stored(ctx, lookup, q, resource, now)
		if err != nil {
			return nil, fmt.Errorf("usage of quota %s/%s: %w", q.Namespace, q.Name, err)
		}
		for _, c := range coming {
			if c.Resource == resource {
				uses[c.UID] = larger(uses[c.UID], By(q, resource, c.Object, now))
			}
		}
		for _, use := range uses {
			add(used, use)
		}
	}
	out := corev1.ResourceList{}
	for name := range q.Spec.Hard {
		out[name] = used[name]
	}
	return out, nil
}

// stored returns what each object in storage uses of the quota.
func stored(ctx context.Context, lookup *registry.Lookup, q *corev1.ResourceQuota, resource schema.GroupResource, now time.Time) (map[types.UID]corev1.ResourceList, error) {
	list, err := registry.ListLive[runtime.Object](ctx, lookup, resource, q.Namespace, everything)
	if err != nil {
		return nil, err
	}
	uses := map[types.UID]corev1.ResourceList{}
	return uses, meta.EachListItem(list, func(obj runtime.Object) error {
		m, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		uses[m.GetUID()] = By(q, resource, obj, now)
		return nil
	})
}

// counted returns the resources whose objects use what the quota limits.
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
	case name == "configmaps", name == "secrets", name == "resourcequotas", name == "replicationcontrollers":
		return schema.GroupResource{Resource: name}
	}
	return schema.GroupResource{Resource: "pods"}
}
