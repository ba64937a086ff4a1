package admission

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/quota"
	"wherry.dev/internal/apiserver/registry"
)

// coming is an object that was admitted and that storage may not have yet, or only in an older
// version.
type coming struct {
	resource schema.GroupResource
	uid      types.UID
	object   runtime.Object
}

// usedOf returns what the quota's namespace uses now of each resource that it limits: what storage
// holds, and what is on its way. The quota's status, which a controller writes, is behind that.
func usedOf(ctx context.Context, lookup *registry.Lookup, q *corev1.ResourceQuota, onTheWay []coming,
	devices quota.Devices, now time.Time) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	for _, resource := range quota.Counted(q) {
		if lookup.Store(resource) == nil {
			continue
		}
		uses, err := stored(ctx, lookup, q, resource, devices, now)
		if err != nil {
			return nil, fmt.Errorf("usage of quota %s/%s: %w", q.Namespace, q.Name, err)
		}
		for _, c := range onTheWay {
			if c.resource == resource {
				uses[c.uid] = quota.Larger(uses[c.uid], quota.By(q, resource, c.object, now, devices))
			}
		}
		for _, use := range uses {
			quota.Add(used, use)
		}
	}
	return quota.Limited(q, used), nil
}

// stored returns what each object in storage uses of the quota.
func stored(ctx context.Context, lookup *registry.Lookup, q *corev1.ResourceQuota, resource schema.GroupResource,
	devices quota.Devices, now time.Time) (map[types.UID]corev1.ResourceList, error) {
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
		uses[m.GetUID()] = quota.By(q, resource, obj, now, devices)
		return nil
	})
}
