package admission

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/quota"
	"wherry.dev/internal/apiserver/registry"
)

// storedDevices is what storage has of devices, for a quota that counts claims for them.
type storedDevices struct {
	names  map[string]string // extended resources by class
	claims []*resourcev1.ResourceClaim
	pods   map[string]*corev1.Pod // those for which claims may have been made
}

var _ quota.Devices = (*storedDevices)(nil)

// devicesFor returns nil for a quota that counts no claims for devices.
func devicesFor(ctx context.Context, lookup *registry.Lookup, q *corev1.ResourceQuota, onTheWay []coming) (quota.Devices, error) {
	if !slices.Contains(quota.Counted(q), quota.DeviceClaims) || lookup.Store(quota.DeviceClaims) == nil {
		return nil, nil
	}
	d := &storedDevices{names: map[string]string{}, pods: map[string]*corev1.Pod{}}
	classes, err := registry.List[*resourcev1.DeviceClassList](ctx, lookup, quota.DeviceClasses, "", everything)
	if err != nil {
		return nil, fmt.Errorf("device classes of quota %s/%s: %w", q.Namespace, q.Name, err)
	}
	for i := range classes.Items {
		d.names[classes.Items[i].Name] = ptr.Deref(classes.Items[i].Spec.ExtendedResourceName, "")
	}
	claims, err := registry.ListLive[*resourcev1.ResourceClaimList](ctx, lookup, quota.DeviceClaims, q.Namespace, everything)
	if err != nil {
		return nil, fmt.Errorf("claims for devices of quota %s/%s: %w", q.Namespace, q.Name, err)
	}
	for i := range claims.Items {
		d.claims = append(d.claims, &claims.Items[i])
	}
	for _, c := range onTheWay {
		if claim, ok := c.object.(*resourcev1.ResourceClaim); ok {
			d.claims = append(d.claims, claim)
		}
	}
	return d, d.findPods(ctx, lookup)
}

// findPods reads the pods for which the scheduler may have made claims.
func (d *storedDevices) findPods(ctx context.Context, lookup *registry.Lookup) error {
	for _, c := range d.claims {
		name := quota.PodOf(c)
		if name == "" || d.pods[name] != nil {
			continue
		}
		pod, err := registry.GetLive[*corev1.Pod](ctx, lookup, schema.GroupResource{Resource: "pods"}, c.Namespace, name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("pod of claim %s/%s: %w", c.Namespace, c.Name, err)
		}
		d.pods[name] = pod
	}
	return nil
}

// ResourceOf implements quota.Devices.
func (d *storedDevices) ResourceOf(class string) string { return d.names[class] }

// Pod implements quota.Devices, for the one namespace of the quota.
func (d *storedDevices) Pod(_, name string) *corev1.Pod { return d.pods[name] }

// Claims implements quota.Devices.
func (d *storedDevices) Claims(string) []*resourcev1.ResourceClaim { return d.claims }
