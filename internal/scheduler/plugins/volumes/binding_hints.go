package volumes

import (
	"context"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/scheduler/framework"
)

// EventsToRegister returns the events after which claims may get their volumes: upstream's, the end of a driver that
// limits its room, and pods that give back volumes because they could not be bound.
func (b *Binding) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		framework.Event(fwk.StorageClass, fwk.Add|fwk.Update, classHint),
		framework.Event(fwk.PersistentVolumeClaim, fwk.Add|fwk.Update, claimHint),
		framework.Event(fwk.PersistentVolume, fwk.Add|fwk.Update, b.volumeHint),
		framework.Event(fwk.Node, fwk.Add|fwk.UpdateNodeLabel, nil),
		framework.Event(fwk.CSINode, fwk.Add|fwk.Update, csiNodeHint),
		framework.Event(fwk.CSIDriver, fwk.Update|fwk.Delete, driverHint),
		framework.Event(fwk.CSIStorageCapacity, fwk.Add|fwk.Update, b.roomHint),
		framework.Event(fwk.AssignedPod, fwk.Delete, b.givenBackHint),
	}, nil
}

// classHint is about a new class, or one that has other topologies.
func classHint(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, class, err := framework.EventObjects[*storagev1.StorageClass](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	return framework.QueueWhen(old == nil || class == nil || !equality.Semantic.DeepEqual(old.AllowedTopologies,
		class.AllowedTopologies))
}

// claimHint is about any change of the pod's own claims.
func claimHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	return newClaimOf(pod, oldObj, newObj)
}

// volumeHint is about the volumes that the pod's claims have, or could have.
func (b *Binding) volumeHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	_, pv, err := framework.EventObjects[*v1.PersistentVolume](oldObj, newObj)
	if err != nil || pv == nil {
		return fwk.Queue, err
	}
	return framework.QueueWhen(b.anyClaim(pod, func(claim *v1.PersistentVolumeClaim) bool {
		return claim.Spec.VolumeName == pv.Name || volume.IsVolumeBoundToClaim(pv, claim) ||
			claim.Spec.VolumeName == "" && volume.GetPersistentVolumeClaimClass(claim) == volume.GetPersistentVolumeClass(pv)
	}))
}

// anyClaim reports whether some claim of the pod is like that.
func (b *Binding) anyClaim(pod *v1.Pod, is func(*v1.PersistentVolumeClaim) bool) bool {
	for _, u := range uses(pod) {
		if claim, err := b.claims.stored(key(pod.Namespace, u.name)); err == nil && is(claim) {
			return true
		}
	}
	return false
}

// csiNodeHint is about a node whose CSI drivers have taken over more, or less.
func csiNodeHint(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, n, err := framework.EventObjects[*storagev1.CSINode](oldObj, newObj)
	if err != nil {
		return fwk.Queue, err
	}
	const migrated = v1.MigratedPluginsAnnotationKey
	return framework.QueueWhen(old == nil || n == nil || old.Annotations[migrated] != n.Annotations[migrated])
}

// driverHint is about a driver whose room does not count any more.
func driverHint(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, d, err := framework.EventObjects[*storagev1.CSIDriver](oldObj, newObj)
	if err != nil || old == nil {
		return fwk.Queue, err
	}
	return framework.QueueWhen(ptr.Deref(old.Spec.StorageCapacity, false) && (d == nil || !ptr.Deref(d.Spec.StorageCapacity, false)))
}

// roomHint is about more room for one of the pod's claims.
func (b *Binding) roomHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, c, err := framework.EventObjects[*storagev1.CSIStorageCapacity](oldObj, newObj)
	if err != nil || c == nil {
		return fwk.Queue, err
	}
	if old != nil {
		was, is := largestVolume(old), largestVolume(c)
		if is == nil || was != nil && is.Cmp(*was) <= 0 {
			return fwk.QueueSkip, nil
		}
	}
	return framework.QueueWhen(b.anyClaim(pod, func(claim *v1.PersistentVolumeClaim) bool {
		return volume.GetPersistentVolumeClaimClass(claim) == c.StorageClassName
	}))
}

// givenBackHint is about a pod that was not bound after all. What was promised to it is free again.
func (b *Binding) givenBackHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	gone, _, err := framework.EventObjects[*v1.Pod](oldObj, newObj)
	if err != nil || gone == nil {
		return fwk.Queue, err
	}
	classes := map[string]bool{}
	b.anyClaim(gone, func(claim *v1.PersistentVolumeClaim) bool {
		if !bound(claim) {
			classes[volume.GetPersistentVolumeClaimClass(claim)] = true
		}
		return false
	})
	return framework.QueueWhen(b.anyClaim(pod, func(claim *v1.PersistentVolumeClaim) bool {
		return !bound(claim) && classes[volume.GetPersistentVolumeClaimClass(claim)]
	}))
}
