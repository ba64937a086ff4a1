package admission

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// usedOf returns what the quota's namespace uses now of each resource that it limits, of custom ones of asked only: what
// storage holds, and what is on its way. The quota's status, which a controller writes, is behind that.
func (p *resourceQuota) usedOf(ctx context.Context, q *corev1.ResourceQuota, asked schema.GroupVersionResource, onTheWay []coming,
	devices quota.Devices, now time.Time) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	for _, resource := range quota.Counted(q) {
		var uses map[types.UID]corev1.ResourceList
		var err error
		switch {
		case p.lookup.Store(resource) != nil:
			uses, err = stored(ctx, p.lookup, q, resource, devices, now)
		case resource == asked.GroupResource():
			uses, err = p.custom(ctx, q, asked)
		default:
			continue
		}
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

// custom returns how the objects of a custom resource count, of which there is nothing but their number.
func (p *resourceQuota) custom(ctx context.Context, q *corev1.ResourceQuota, resource schema.GroupVersionResource) (map[types.UID]corev1.ResourceList, error) {
	client, err := p.metadata()
	if err != nil {
		return nil, err
	}
	list, err := client.Resource(resource).Namespace(q.Namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) { // what is asked for is not stored, a review say
		return map[types.UID]corev1.ResourceList{}, nil
	}
	if err != nil {
		return nil, err
	}
	uses := map[types.UID]corev1.ResourceList{}
	for i := range list.Items {
		uses[list.Items[i].UID] = quota.By(q, resource.GroupResource(), &list.Items[i], time.Time{}, nil)
	}
	return uses, nil
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
