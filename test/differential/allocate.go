package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// allocate gives the claims of a pod their devices, as far as they have none, and reserves them for the pod. It
// reports whether all of that was possible: a claim that both schedulers would use may have lost its devices since.
func (w *world) allocate(ctx context.Context, d dice, p *v1.Pod, node string) (bool, error) {
	claims, err := w.claimsOf(ctx, p)
	if err != nil {
		return false, err
	}
	open := slices.DeleteFunc(slices.Clone(claims), func(c *resourcev1.ResourceClaim) bool { return c.Status.Allocation != nil })
	found, err := w.find(ctx, open, node)
	if err != nil || len(found) < len(open) {
		return false, err
	}
	for i, c := range open {
		c.Status.Allocation = &found[i]
		// Conditions that are awaited count from then on.
		c.Status.Allocation.AllocationTimestamp = new(metav1.NewTime(one(d, time.Now(), born)))
		c.Status.Devices = d.conditions(c.Status.Allocation)
	}
	for _, c := range claims {
		if !slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == p.UID }) {
			c.Status.ReservedFor = append(c.Status.ReservedFor,
				resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
		}
		if err := w.writeClaim(ctx, c); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (w *world) writeClaim(ctx context.Context, c *resourcev1.ResourceClaim) error {
	_, err := w.typed.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}

// claimsOf returns the pod's claims.
func (w *world) claimsOf(ctx context.Context, p *v1.Pod) ([]*resourcev1.ResourceClaim, error) {
	var out []*resourcev1.ResourceClaim
	for _, ref := range p.Spec.ResourceClaims {
		c, err := w.typed.ResourceV1().ResourceClaims(p.Namespace).Get(ctx, *ref.ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// find has the library find devices on a node, for all claims or none.
func (w *world) find(ctx context.Context, open []*resourcev1.ResourceClaim, node string) ([]resourcev1.AllocationResult, error) {
	if len(open) == 0 {
		return nil, nil
	}
	n, err := w.typed.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	api := w.typed.ResourceV1()
	there, err := api.ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all, err := api.ResourceClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	known, err := api.DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	features := structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true,
	}
	a, err := structured.NewAllocator(ctx, features, taken(all.Items), classList(known.Items), pointers(there.Items),
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		return nil, err
	}
	return a.Allocate(ctx, n, open)
}

func pointers[T any](items []T) []*T {
	var out []*T
	for i := range items {
		out = append(out, &items[i])
	}
	return out
}

// classList are the classes as the library asks for them.
type classList []resourcev1.DeviceClass

// List returns all.
func (l classList) List() ([]*resourcev1.DeviceClass, error) { return pointers(l), nil }

// Get returns one.
func (l classList) Get(name string) (*resourcev1.DeviceClass, error) {
	for i := range l {
		if l[i].Name == name {
			return &l[i], nil
		}
	}
	return nil, errors.NewNotFound(schema.GroupResource{Group: resourcev1.GroupName, Resource: "deviceclasses"}, name)
}

// taken returns what claims have.
func taken(claims []resourcev1.ResourceClaim) structured.AllocatedState {
	out := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for _, c := range claims {
		for _, r := range ptr.Deref(c.Status.Allocation, resourcev1.AllocationResult{}).Devices.Results {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			switch {
			case ptr.Deref(r.AdminAccess, false):
			case r.ShareID == nil:
				out.AllocatedDevices.Insert(id)
			default:
				out.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
				out.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		}
	}
	return out
}

// conditions are what a driver says of devices for whose conditions somebody waits: mostly that they are ready.
func (d dice) conditions(a *resourcev1.AllocationResult) []resourcev1.AllocatedDeviceStatus {
	var out []resourcev1.AllocatedDeviceStatus
	for _, r := range a.Devices.Results {
		if len(r.BindingConditions) == 0 {
			continue
		}
		s := resourcev1.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device, ShareID: (*string)(r.ShareID)}
		if c := one(d, ready, ready, broken, ""); c != "" {
			s.Conditions = []metav1.Condition{{
				Type: c, Status: metav1.ConditionTrue, Reason: "MadeUp", LastTransitionTime: metav1.NewTime(born),
			}}
		}
		out = append(out, s)
	}
	return out
}

// release takes a pod's claims from it. A claim that nobody uses any more may lose its devices, or keep them for
// the next one.
func (w *world) release(ctx context.Context, d dice, p *v1.Pod) error {
	claims, err := w.claimsOf(ctx, p)
	if err != nil {
		return err
	}
	for _, c := range claims {
		c.Status.ReservedFor = slices.DeleteFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
			return r.UID == p.UID
		})
		if len(c.Status.ReservedFor) == 0 && d.chance(2) {
			c.Status = resourcev1.ResourceClaimStatus{}
		}
		if err := w.writeClaim(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
