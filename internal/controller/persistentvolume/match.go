package persistentvolume

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// choose returns the volume for a claim that names none, or nil: one that is kept for it, or else, of those that fit,
// one with the fewest modes of access, of these the smallest. With late, only one that is kept for it: the scheduler
// chooses the others, when it knows the node.
func choose(claim *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume, late bool) (*v1.PersistentVolume, error) {
	var best *v1.PersistentVolume
	for _, pv := range volumes {
		// The scheduler asks the same function. Without a node, it checks everything but the modes of access.
		match, err := volume.FindMatchingVolume(claim, []*v1.PersistentVolume{pv}, nil, nil, late, true)
		if err != nil {
			return nil, err
		}
		if match != nil && volume.CheckAccessModes(claim, pv) && (best == nil || better(claim, pv, best)) {
			best = pv
		}
	}
	return best, nil
}

// better reports whether volume a is a better choice for the claim than b.
func better(claim *v1.PersistentVolumeClaim, a, b *v1.PersistentVolume) bool {
	kept := func(pv *v1.PersistentVolume) int {
		switch {
		case pv.Spec.ClaimRef == nil:
			return 2
		case pv.Spec.ClaimRef.UID == claim.UID:
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(kept(a), kept(b)),
		cmp.Compare(len(a.Spec.AccessModes), len(b.Spec.AccessModes)),
		a.Spec.Capacity.Storage().Cmp(*b.Spec.Capacity.Storage()),
		cmp.Compare(a.Name, b.Name),
	) < 0
}

// misfit says why the volume that a claim names is not one for it; "" if it is. The claim's selector does not count:
// whoever names a volume has chosen.
func misfit(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) string {
	size, want := pv.Spec.Capacity.Storage(), claim.Spec.Resources.Requests.Storage()
	switch {
	case pv.DeletionTimestamp != nil:
		return `the volume is marked for deletion "` + pv.Name + `"`
	case size.Cmp(*want) < 0:
		return "requested PV is too small"
	case volume.GetPersistentVolumeClass(pv) != volume.GetPersistentVolumeClaimClass(claim):
		return "storageClassName does not match"
	case ptr.Deref(pv.Spec.VolumeAttributesClassName, "") != ptr.Deref(claim.Spec.VolumeAttributesClassName, ""):
		return "volumeAttributesClassName does not match"
	case volume.CheckVolumeModeMismatches(&claim.Spec, &pv.Spec):
		return "incompatible volumeMode"
	case !volume.CheckAccessModes(claim, pv):
		return "incompatible accessMode"
	}
	return ""
}
