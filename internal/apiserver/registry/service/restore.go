package service

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver/registry"
)

// deletions collects addresses whose objects are deleted, with the services that had them. A service
// that still has its address gets the object back.
type deletions struct {
	follower *registry.Follower[*networkingv1.IPAddress]
	wake     chan struct{}
	// holders has the service of each address that there is an object of. Only the follower uses it.
	holders map[string]types.NamespacedName

	mu      sync.Mutex
	pending map[string]types.NamespacedName
}

func newDeletions() *deletions {
	d := &deletions{wake: make(chan struct{}, 1), holders: map[string]types.NamespacedName{}, pending: map[string]types.NamespacedName{}}
	d.follower = registry.NewFollower(d.set, d.del)
	return d
}

// follow collects until ctx ends.
func (d *deletions) follow(ctx context.Context, l *registry.Lookup) {
	if err := d.follower.Run(ctx, l.Store(ipAddresses), fields.Everything()); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to watch storage", "resource", "ipaddresses")
	}
}

func (d *deletions) set(a *networkingv1.IPAddress) {
	if ref := a.Spec.ParentRef; ref != nil && ref.Group == "" && ref.Resource == "services" {
		d.holders[a.Name] = types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	} else {
		delete(d.holders, a.Name)
	}
}

func (d *deletions) del(key types.NamespacedName) {
	holder, ok := d.holders[key.Name]
	if !ok {
		return
	}
	delete(d.holders, key.Name)
	d.mu.Lock()
	d.pending[key.Name] = holder
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// take returns what was collected, and forgets it.
func (d *deletions) take() map[string]types.NamespacedName {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.pending
	d.pending = map[string]types.NamespacedName{}
	return out
}

// restoreAll makes the objects of addresses again whose services still have them. After an error, the
// comparison of everything does it later.
func (a *Allocator) restoreAll(ctx context.Context, lost map[string]types.NamespacedName, report Report) {
	for ip, holder := range lost {
		if err := a.restore(ctx, ip, holder, report); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot make a deleted IPAddress again; trying later", "ip", ip, "service", holder, "after", repairEvery)
		}
	}
}

// restore makes the object of an address again if the service still has the address. Usually it does not:
// objects are deleted after their services.
func (a *Allocator) restore(ctx context.Context, ip string, holder types.NamespacedName, report Report) error {
	svc, err := registry.GetLive[*corev1.Service](ctx, a.lookup, corev1.Resource("services"), holder.Namespace, holder.Name)
	if apierrors.IsNotFound(err) || err == nil && !slices.Contains(addressesOf(svc), ip) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", holder, err)
	}
	_, err = registry.GetLive[*networkingv1.IPAddress](ctx, a.lookup, ipAddresses, metav1.NamespaceNone, ip)
	if !apierrors.IsNotFound(err) {
		return err // nil: somebody was faster
	}
	return a.repair(ctx, fault{ip: ip, service: svc}, report)
}
