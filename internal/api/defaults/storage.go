package defaults

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// StorageClass makes the class create volumes at once, and delete them with their claim.
func StorageClass(c *storagev1.StorageClass) {
	setPtr(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	setPtr(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

// CSIDriver makes the driver one that attaches persistent volumes and needs nothing special.
func CSIDriver(d *storagev1.CSIDriver) {
	spec := &d.Spec
	setPtr(&spec.AttachRequired, true)
	setPtr(&spec.PodInfoOnMount, false)
	setPtr(&spec.StorageCapacity, false)
	setPtr(&spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(spec.VolumeLifecycleModes) == 0 {
		spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	setPtr(&spec.RequiresRepublish, false)
	setPtr(&spec.SELinuxMount, false)
	setPtr(&spec.PreventPodSchedulingIfMissing, false)
}

// VolumeAttachment rounds an inline volume's capacity as that of other volumes. It needs no other
// defaults, because only CSI is allowed as its source.
func VolumeAttachment(a *storagev1.VolumeAttachment) {
	if v := a.Spec.Source.InlineVolumeSpec; v != nil {
		roundUp(v.Capacity)
	}
}
