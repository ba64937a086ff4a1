package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/apiserver/registry"
)

const (
	// repairEvery is how often the objects of addresses are compared with the services.
	repairEvery = 30 * time.Second
	// grace is how old an object must be before the lack of its service means anything: a request that
	// makes a service makes the object first, and may take a minute.
	grace = 2 * time.Minute
)

// Report tells the user of something that was repaired, or cannot be: upstream's reasons.
type Report func(about runtime.Object, reason, message string)

// Repair makes what is claimed match the services again: after a crash between the two writes, or if the
// data comes from another API server. It runs before requests are served.
func (a *Allocator) Repair(ctx context.Context, services []corev1.Service, report Report) error {
	if err := a.RepairAddresses(ctx, time.Now(), report); err != nil {
		return err
	}
	if err := a.dropAddressClaims(ctx); err != nil {
		return err
	}
	return a.RepairPorts(ctx, services, time.Now())
}

// dropAddressClaims removes the claims of addresses that an earlier release has left.
func (a *Allocator) dropAddressClaims(ctx context.Context) error {
	have, err := a.claims.Claims(ctx, ipFolder)
	for key, owner := range have {
		err = errors.Join(err, a.claims.Release(ctx, key, owner))
	}
	return err
}

// RunRepair makes the object of a service's address again when somebody deletes it, and compares all
// objects of addresses with the services now and then, until ctx ends.
func (a *Allocator) RunRepair(ctx context.Context, report Report) {
	deleted := newDeletions()
	var following sync.WaitGroup
	following.Go(func() { deleted.follow(ctx, a.lookup) })
	defer following.Wait()
	synced := deleted.follower.Synced()
	tick := time.NewTicker(repairEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-deleted.wake:
			a.restoreAll(ctx, deleted.take(), report)
			continue
		case <-synced: // what was deleted before the watch began
			synced = nil
		case <-tick.C:
		}
		if err := errors.Join(a.RepairAddresses(ctx, time.Now(), report), a.comparePorts(ctx)); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot compare addresses and ports with services; trying again", "after", repairEvery)
		}
	}
}

// fault is a difference between services and the objects of their addresses.
type fault struct {
	ip      string
	service *corev1.Service         // that should have the address; nil if its object is one too many
	object  *networkingv1.IPAddress // that is wrong; nil if there is none
	twice   bool                    // another service has the address as well
}

// RepairAddresses makes objects that are missing, and deletes those of ours whose service is gone or has
// another address. What the watch caches say is verified before anything is changed.
func (a *Allocator) RepairAddresses(ctx context.Context, now time.Time, report Report) error {
	services, err := registry.List[*corev1.ServiceList](ctx, a.lookup, corev1.Resource("services"), metav1.NamespaceAll, everything)
	if err != nil {
		return err
	}
	objects, err := registry.List[*networkingv1.IPAddressList](ctx, a.lookup, ipAddresses, metav1.NamespaceNone, everything)
	if err != nil {
		return err
	}
	for _, f := range faults(services.Items, objects.Items, now) {
		if err := a.repair(ctx, f, report); err != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("repair address %s: %w", f.ip, err)
		}
	}
	return nil
}

// faults compares the services with the objects of their addresses.
func faults(services []corev1.Service, objects []networkingv1.IPAddress, now time.Time) []fault {
	byIP := map[string]*networkingv1.IPAddress{}
	for i := range objects {
		byIP[objects[i].Name] = &objects[i]
	}
	byName := map[string]*corev1.Service{}
	for i := range services {
		byName[services[i].Namespace+"/"+services[i].Name] = &services[i]
	}
	var out []fault
	for i := range services {
		for _, ip := range addressesOf(&services[i]) {
			if o := byIP[ip]; o == nil || !refersTo(o, ownerIn(ownerOf(&services[i]))) {
				out = append(out, fault{ip, &services[i], o, o != nil && hasParent(o, byName)})
			}
		}
	}
	for i := range objects {
		o := &objects[i]
		if o.Labels[networkingv1.LabelManagedBy] == managedBy && !hasParent(o, byName) && now.Sub(o.CreationTimestamp.Time) > grace {
			out = append(out, fault{ip: o.Name, object: o})
		}
	}
	return out
}

// hasParent reports whether the service that an object of ours names has the address.
func hasParent(a *networkingv1.IPAddress, byName map[string]*corev1.Service) bool {
	if a.Spec.ParentRef == nil {
		return false
	}
	s := byName[a.Spec.ParentRef.Namespace+"/"+a.Spec.ParentRef.Name]
	return s != nil && refersTo(a, ownerIn(ownerOf(s))) && slices.Contains(addressesOf(s), a.Name)
}

// addressesOf returns the cluster IPs of a service in the form of IPAddress names.
func addressesOf(s *corev1.Service) (out []string) {
	for _, ip := range s.Spec.ClusterIPs {
		if parsed := utilnet.ParseIPSloppy(ip); parsed != nil {
			out = append(out, parsed.String())
		}
	}
	return out
}

func (a *Allocator) repair(ctx context.Context, f fault, report Report) error {
	if f.service == nil {
		return a.repairLeaked(ctx, f.object, report)
	}
	live, err := registry.GetLive[*corev1.Service](ctx, a.lookup, corev1.Resource("services"), f.service.Namespace, f.service.Name)
	if apierrors.IsNotFound(err) || err == nil && (live.UID != f.service.UID || !slices.Contains(addressesOf(live), f.ip)) {
		return nil // the watch cache was behind
	}
	if err != nil {
		return err
	}
	family := familyOf(f.ip)
	switch {
	case f.twice:
		report(live, "ClusterIPAlreadyAllocated", fmt.Sprintf("Cluster IP [%s]:%s was assigned to multiple services; please recreate service", family, f.ip))
		return nil
	case f.object != nil:
		report(live, "ClusterIPNotAllocated", fmt.Sprintf("the ClusterIP [%s]: %s for Service %s/%s has a wrong reference; repairing", family, f.ip, live.Namespace, live.Name))
		if err := a.deleteAddress(ctx, f.object); err != nil {
			return err
		}
	default:
		report(live, "ClusterIPNotAllocated", fmt.Sprintf("Cluster IP [%s]: %s is not allocated; repairing", family, f.ip))
	}
	if err := a.claimAddress(ctx, f.ip, ownerIn(ownerOf(live)), false); err != nil && !errors.Is(err, errTaken) {
		return err
	}
	return nil // if somebody was faster, the next round looks again
}

// repairLeaked deletes an object of ours that no service has.
func (a *Allocator) repairLeaked(ctx context.Context, obj *networkingv1.IPAddress, report Report) error {
	ref := obj.Spec.ParentRef
	if ref == nil || ref.Group != "" || ref.Resource != "services" {
		report(obj, "IPAddressNotAllocated", fmt.Sprintf("IPAddress %s appears to have been modified, not referencing a Service %v: cleaning up", obj.Name, ref))
		return a.deleteAddress(ctx, obj)
	}
	live, err := registry.GetLive[*corev1.Service](ctx, a.lookup, corev1.Resource("services"), ref.Namespace, ref.Name)
	switch {
	case apierrors.IsNotFound(err):
		report(obj, "IPAddressNotAllocated", fmt.Sprintf("IPAddress: %s for Service %s/%s appears to have leaked: cleaning up", obj.Name, ref.Namespace, ref.Name))
	case err != nil:
		return err
	case slices.Contains(addressesOf(live), obj.Name):
		return nil // the watch cache was behind
	default:
		report(obj, "IPAddressWrongReference", fmt.Sprintf("IPAddress: %s for Service %s/%s has a wrong reference; cleaning up", obj.Name, ref.Namespace, ref.Name))
	}
	return a.deleteAddress(ctx, obj)
}

// comparePorts is RepairPorts while requests are served.
func (a *Allocator) comparePorts(ctx context.Context) error {
	services, err := registry.List[*corev1.ServiceList](ctx, a.lookup, corev1.Resource("services"), metav1.NamespaceAll, everything)
	if err != nil {
		return err
	}
	return a.RepairPorts(ctx, services.Items, time.Now())
}

// stray is a claim of a service that does not exist, as far as is known.
type stray struct {
	owner string
	since time.Time // when that was first seen
}

// RepairPorts makes the claims of ports match the services again. A claim that no service has may be that of a service which another server is making: it is
// released when it has been so for a while.
func (a *Allocator) RepairPorts(ctx context.Context, services []corev1.Service, now time.Time) error {
	want := map[string]string{}
	for i := range services {
		for _, c := range claimsOf(&services[i]) {
			if !strings.HasPrefix(c.key, ipFolder) {
				want[c.key] = c.owner
			}
		}
	}
	have, err := a.claims.Claims(ctx, portFolder)
	if err != nil {
		return err
	}
	strays := map[string]stray{}
	for key, owner := range have {
		if want[key] == owner {
			delete(want, key)
			continue
		}
		s := a.strays[key]
		if s.owner != owner {
			s = stray{owner, now}
		}
		if now.Sub(s.since) <= grace {
			strays[key] = s
			continue
		}
		if has, err := a.has(ctx, claim{key, owner}); err != nil {
			return err
		} else if !has {
			if err := a.claims.Release(ctx, key, owner); err != nil {
				return err
			}
		}
	}
	a.strays = strays
	return a.reclaim(ctx, want)
}

// reclaim makes the claims of services that have none.
func (a *Allocator) reclaim(ctx context.Context, want map[string]string) error {
	for key, owner := range want {
		if has, err := a.has(ctx, claim{key, owner}); err != nil {
			return err
		} else if !has {
			continue // the watch cache was behind
		}
		_, holder, err := a.claims.Claim(ctx, key, owner)
		if err != nil {
			return err
		}
		if _, gone := a.strays[key]; holder != owner && !gone {
			klog.FromContext(ctx).Info("Two services have the same node port; delete one of them",
				"key", key, "services", strings.Join([]string{holder, owner}, ", "))
		}
	}
	return nil
}

// has reports whether the owner of a claim exists, and has it. It asks storage.
func (a *Allocator) has(ctx context.Context, c claim) (bool, error) {
	parts := strings.Split(c.owner, "/")
	if len(parts) != 3 {
		return false, nil
	}
	live, err := registry.GetLive[*corev1.Service](ctx, a.lookup, corev1.Resource("services"), parts[0], parts[1])
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && slices.Contains(claimsOf(live), c), err
}
