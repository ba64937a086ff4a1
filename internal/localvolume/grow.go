package localvolume

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Growth is a number: a directory has no size, and there is no file system to grow. The volume gets it first, then the
// claim's status. What is between the two after a kill says that only the second is left.

// grows reports whether a claim asks for more than it has.
func grows(claim *v1.PersistentVolumeClaim) bool {
	wants, has := claim.Spec.Resources.Requests.Storage(), claim.Status.Capacity.Storage()
	return claim.Status.Phase == v1.ClaimBound && wants.Cmp(*has) > 0
}

// wakeGrowth wakes a claim that asks for more.
func (p *Provisioner) wakeGrowth(old, obj any) {
	if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && grows(claim) {
		p.growth.AddObject(old, obj)
	}
}

// wakeOwner wakes the claim of a volume, which may have asked for more when the volume was not known yet.
func (p *Provisioner) wakeOwner(_, obj any) {
	if pv, ok := obj.(*v1.PersistentVolume); ok && pv.Spec.ClaimRef != nil && ours(pv) {
		p.growth.Add(pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name)
	}
}

// syncGrowth gives a claim what it asks for, if its volume is on a node that can be asked and its disk has room.
func (p *Provisioner) syncGrowth(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	known, err := p.claimLister.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && !grows(known) {
		return nil
	}
	if err != nil {
		return err
	}
	pv, err := p.volumeLister.Get(known.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return nil // it is gone, or wakes the claim when the informer has it
	}
	if err != nil {
		return err
	}
	at, err := p.at(pv)
	if err != nil || at == nil || !ours(pv) {
		return err
	}
	// What was written for an earlier wish may not have arrived in the informers.
	claim, err := p.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (!grows(claim) || claim.DeletionTimestamp != nil) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at claim %s: %w", key, err)
	}
	if pv, err = p.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("look at volume %s: %w", claim.Spec.VolumeName, err)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		return nil // the claim is lost
	}
	if done, err := p.growVolume(ctx, at, claim, pv); err != nil || !done {
		return err
	}
	return p.growClaim(ctx, claim)
}

// growVolume writes the size that a claim asks for into its volume. It reports whether the volume has that now: the disk
// may have no room, of which nobody tells when that changes.
func (p *Provisioner) growVolume(ctx context.Context, at *place, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (bool, error) {
	want, has := claim.Spec.Resources.Requests[v1.ResourceStorage], pv.Spec.Capacity[v1.ResourceStorage]
	if want.Cmp(has) <= 0 {
		return true, nil
	}
	p.forget(at.node.Name)
	free, err := p.free(ctx, at)
	if err != nil {
		return false, err
	}
	if more := want.Value() - has.Value(); more > free {
		p.events.Eventf(claim, v1.EventTypeWarning, "VolumeResizeFailed",
			"resize volume %q from %s to %s failed: node %s has room for %s more",
			pv.Name, has.String(), want.String(), at.node.Name, resource.NewQuantity(free, resource.BinarySI))
		p.growth.AddAfter(cache.MetaObjectToName(claim).String(), p.pace())
		return false, nil
	}
	if err := at.disk.Limit(ctx, pv.Name, want.Value()); err != nil {
		return false, err
	}
	next := pv.DeepCopy()
	next.Spec.Capacity[v1.ResourceStorage] = want
	if _, err := p.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return false, fmt.Errorf("write the size of volume %s: %w", pv.Name, err)
	}
	return true, nil
}

// growClaim writes what a claim asked for into its status, and that nobody is at work on it any more.
func (p *Provisioner) growClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	want := claim.Spec.Resources.Requests[v1.ResourceStorage]
	next := claim.DeepCopy()
	s := &next.Status
	if s.Capacity == nil {
		s.Capacity = v1.ResourceList{}
	}
	if s.AllocatedResources == nil {
		s.AllocatedResources = v1.ResourceList{}
	}
	s.Capacity[v1.ResourceStorage], s.AllocatedResources[v1.ResourceStorage] = want, want
	delete(s.AllocatedResourceStatuses, v1.ResourceStorage)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimResizing || c.Type == v1.PersistentVolumeClaimFileSystemResizePending
	})
	_, err := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	p.events.Event(claim, v1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
	return nil
}
