package devices

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// EventsToRegister returns the events after which a pod's claims may get their devices: upstream's, the end of an
// allocated claim, and pods that give devices back because they could not be bound.
func (d *Devices) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		framework.Event(fwk.Node, fwk.Add|fwk.UpdateNodeLabel, nil),
		framework.Event(fwk.Node, fwk.UpdateNodeAllocatable, d.allocatableHint),
		framework.Event(fwk.ResourceClaim, fwk.Add|fwk.Update|fwk.Delete, d.claimHint),
		framework.Event(fwk.Pod, fwk.UpdatePodGeneratedResourceClaim, d.podHint),
		framework.Event(fwk.DeviceClass, fwk.Add|fwk.Update|fwk.Delete, d.classHint),
		framework.Event(fwk.ResourceSlice, fwk.Add|fwk.Update, d.sliceHint),
		framework.Event(fwk.AssignedPod, fwk.Delete, d.givenBackHint),
	}, nil
}

func anyClaim(*resourcev1.ResourceClaim) bool { return true }

// claimHint is about the status of the pod's own claims, and about devices that others give up.
func (d *Devices) claimHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, claim, err := framework.EventObjects[*resourcev1.ResourceClaim](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	own, err := d.claimsOf(pod)
	if err != nil {
		return fwk.QueueSkip, nil //nolint:nilerr // it says that the pod still lacks a claim
	}
	if claim != nil {
		for _, c := range own {
			if c.UID == claim.UID {
				return framework.QueueWhen(old == nil || !equality.Semantic.DeepEqual(old.Status, claim.Status))
			}
		}
	}
	if old != nil && claim == nil && slices.Contains(podOf(old), string(pod.UID)) {
		return fwk.Queue, nil // it was in the way
	}
	freed := old != nil && old.Status.Allocation != nil && (claim == nil || claim.Status.Allocation == nil)
	return framework.QueueWhen(freed && d.needsDevices(pod))
}

// podHint is about the claims that were made for the pod.
func (d *Devices) podHint(_ klog.Logger, pod *v1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	_, changed, err := framework.EventObjects[*v1.Pod](nil, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if pod.UID != changed.UID {
		return fwk.QueueSkip, nil
	}
	_, err = d.claimsOf(changed)
	return framework.QueueWhen(err == nil)
}

// classHint is about a class that one of the pod's open claims names, or one that its extended resources mean, or meant:
// another one may have taken its place.
func (d *Devices) classHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, class, err := framework.EventObjects[*resourcev1.DeviceClass](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if old != nil && class != nil && equality.Semantic.DeepEqual(old.Spec, class.Spec) {
		return fwk.QueueSkip, nil
	}
	asked := ExtendedResources(pod)
	for _, c := range []*resourcev1.DeviceClass{old, class} {
		if c == nil {
			continue
		}
		for _, name := range resourcesOf(c) {
			if slices.Contains(asked, v1.ResourceName(name)) {
				return fwk.Queue, nil
			}
		}
	}
	return framework.QueueWhen(class != nil && d.hasOpen(pod, func(claim *resourcev1.ResourceClaim) bool {
		for _, name := range classesOf(claim) {
			if name == class.Name {
				return true
			}
		}
		return false
	}))
}

// allocatableHint is about an extended resource that a node has come to offer itself, or offers no more.
func (d *Devices) allocatableHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, node, err := framework.EventObjects[*v1.Node](oldObj, newObj)
	if err != nil || old == nil || node == nil {
		return fwk.Queue, err
	}
	for _, name := range ExtendedResources(pod) {
		had, has := old.Status.Allocatable[name], node.Status.Allocatable[name]
		if had.Cmp(has) != 0 {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// sliceHint is about devices that appear, or change.
func (d *Devices) sliceHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, slice, err := framework.EventObjects[*resourcev1.ResourceSlice](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	if old != nil && equality.Semantic.DeepEqual(old.Spec, slice.Spec) {
		return fwk.QueueSkip, nil
	}
	return framework.QueueWhen(d.needsDevices(pod))
}

// givenBackHint is about a pod that was not bound after all. What was promised to its claims is free again.
func (d *Devices) givenBackHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	gone, _, err := framework.EventObjects[*v1.Pod](oldObj, newObj)
	if err != nil || gone == nil {
		return fwk.Queue, err
	}
	return framework.QueueWhen(d.mayGiveBack(gone) && d.needsDevices(pod))
}

// mayGiveBack reports whether devices may have been promised to the pod that never became its claims'.
func (d *Devices) mayGiveBack(pod *v1.Pod) bool {
	if backed(pod, d.classes) != nil && pod.Status.ExtendedResourceClaimStatus == nil {
		return true
	}
	for name := range resourceclaim.PodClaims(pod) {
		if claim, err := d.claims.get(pod.Namespace, name); err != nil || claim.Status.Allocation == nil {
			return true
		}
	}
	return false
}
