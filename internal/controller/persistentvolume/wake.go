package persistentvolume

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claimusers"
)

// claimChanged wakes a claim, and when it is gone, those that want its volume.
func (c *Controller) claimChanged(old, obj any) {
	was, _ := old.(*v1.PersistentVolumeClaim)
	is, _ := obj.(*v1.PersistentVolumeClaim)
	if is != nil {
		c.claims.Add(keyOf(is))
	}
	if was == nil || is != nil && is.UID == was.UID { // there may be another one of that name already
		return
	}
	c.said.forget(was)
	c.promises.release(was.UID)
	if was.Spec.VolumeName != "" {
		c.wakeClaims(ofVolume(was.Spec.VolumeName), nil)
	}
}

// volumeChanged wakes the claims that have a volume, had it, or want it, and those that it would fit.
func (c *Controller) volumeChanged(old, obj any) {
	was, _ := old.(*v1.PersistentVolume)
	is, _ := obj.(*v1.PersistentVolume)
	for _, pv := range []*v1.PersistentVolume{was, is} {
		if pv == nil {
			continue
		}
		c.wakeClaims(ofVolume(pv.Name), nil)
		if pv.Spec.ClaimRef != nil {
			c.claims.Add(refKey(pv.Spec.ClaimRef))
		}
	}
	if was != nil && (is == nil || is.UID != was.UID) {
		c.said.forget(was)
	}
	if is == nil {
		c.promises.saw(was.Name, "")
		return
	}
	c.promises.saw(is.Name, is.ResourceVersion)
	if is.Spec.ClaimRef == nil && is.Status.Phase == v1.VolumeAvailable {
		c.wakeClaims(ofClass(volume.GetPersistentVolumeClass(is)), func(claim *v1.PersistentVolumeClaim) bool {
			match, err := choose(claim, []*v1.PersistentVolume{is}, false)
			return match != nil && err == nil
		})
	}
}

// classChanged wakes the claims of a class, and those that might get it as the default.
func (c *Controller) classChanged(old, obj any) {
	was, _ := old.(*storagev1.StorageClass)
	is, _ := obj.(*storagev1.StorageClass)
	either := is
	if is == nil {
		either = was
	}
	c.wakeClaims(ofClass(either.Name), nil)
	if is != nil && classes.IsDefaultStorage(is) || was != nil && classes.IsDefaultStorage(was) {
		c.wakeClaims(unclassed, nil)
	}
}

// podChanged wakes the claims without a volume of a pod that comes, gets a node, or goes.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	is, _ := obj.(*v1.Pod)
	if was != nil && is != nil && waiting(was) == waiting(is) {
		return
	}
	either := is
	if is == nil {
		either = was
	}
	for _, key := range claimusers.ClaimsOf(either) {
		if item, exists, err := c.claimIndex.GetByKey(key); err == nil && exists {
			if claim, ok := item.(*v1.PersistentVolumeClaim); ok && !done(claim) {
				c.claims.Add(key)
			}
		}
	}
}

// waiting reports whether a pod has no node yet.
func waiting(p *v1.Pod) bool { return p.Spec.NodeName == "" && !pods.IsTerminal(p.Status.Phase) }

// wakeVolumesOf wakes the volume that a claim has, or wants, and those that name the claim.
func (c *Controller) wakeVolumesOf(old, obj any) {
	for _, o := range []any{old, obj} {
		if claim, ok := o.(*v1.PersistentVolumeClaim); ok {
			if claim.Spec.VolumeName != "" {
				c.volumes.Add(claim.Spec.VolumeName)
			}
			c.wakeVolumes(keyOf(claim), nil)
		}
	}
}

// podLetsGo wakes the volumes that are to be recycled when their last pod is over.
func (c *Controller) podLetsGo(old, obj any) {
	was, ok := old.(*v1.Pod)
	if is, there := obj.(*v1.Pod); !ok || there && !pods.IsTerminal(is.Status.Phase) {
		return
	}
	for _, key := range claimusers.ClaimsOf(was) {
		c.wakeVolumes(key, func(pv *v1.PersistentVolume) bool {
			return pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle
		})
	}
}

// wakeClaims wakes the claims that want something, if they are among those asked for.
func (c *Controller) wakeClaims(want string, among func(*v1.PersistentVolumeClaim) bool) {
	claims, err := controller.LookUp[*v1.PersistentVolumeClaim](c.claimIndex, byWant, want)
	if err != nil {
		return // the index exists
	}
	for _, claim := range claims {
		if among == nil || among(claim) {
			c.claims.Add(keyOf(claim))
		}
	}
}

// wakeVolumes wakes the volumes that name a claim, if they are among those asked for.
func (c *Controller) wakeVolumes(claim string, among func(*v1.PersistentVolume) bool) {
	volumes, err := controller.LookUp[*v1.PersistentVolume](c.volumeIndex, byClaim, ofClaim(claim))
	if err != nil {
		return // the index exists
	}
	for _, pv := range volumes {
		if among == nil || among(pv) {
			c.volumes.Add(pv.Name)
		}
	}
}
