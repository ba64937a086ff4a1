package persistentvolume

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// sizeBefore is what a volume has that has grown, while its file system has not.
const sizeBefore = "volume.alpha.kubernetes.io/pre-resize-capacity"

// boundTo returns the claim bound to the volume, or nil if it is already. with is the claim with other metadata, or nil.
func boundTo(claim, with *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) *v1.PersistentVolumeClaim {
	done := metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
	if done && claim.Spec.VolumeName == pv.Name {
		return with
	}
	if with == nil {
		with = claim.DeepCopy()
	}
	if claim.Spec.VolumeName != pv.Name {
		with.Spec.VolumeName = pv.Name
		mark(with, volume.AnnBoundByController)
	}
	mark(with, volume.AnnBindCompleted)
	return with
}

// mark sets an annotation whose value does not matter.
func mark(claim *v1.PersistentVolumeClaim, annotation string) {
	if !metav1.HasAnnotation(claim.ObjectMeta, annotation) {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annotation, "yes")
	}
}

// inPhase returns the claim with the status that it has in a phase; nil if it has that already. pv is its volume, nil
// if it has none.
//
// The size and the class of attributes are taken from the volume when the claim gets it. From then on they are for
// whoever resizes and modifies volumes to write.
func inPhase(claim *v1.PersistentVolumeClaim, phase v1.PersistentVolumeClaimPhase, pv *v1.PersistentVolume) *v1.PersistentVolumeClaim {
	out := claim.DeepCopy()
	s := &out.Status
	was := s.Phase
	s.Phase = phase
	if pv == nil {
		s.AccessModes, s.Capacity, s.CurrentVolumeAttributesClassName = nil, nil, nil
	} else {
		s.AccessModes = slices.Clone(pv.Spec.AccessModes)
		if was != phase {
			s.Capacity = capacity(s.Capacity, pv)
		}
		if was == v1.ClaimPending && phase == v1.ClaimBound {
			s.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
		}
	}
	if equality.Semantic.DeepEqual(claim.Status, out.Status) {
		return nil
	}
	return out
}

func capacity(old v1.ResourceList, pv *v1.PersistentVolume) v1.ResourceList {
	size, ok := pv.Spec.Capacity[v1.ResourceStorage]
	if !ok {
		return old // the API server lets in none without
	}
	if before, ok := pv.Annotations[sizeBefore]; ok {
		if q, err := resource.ParseQuantity(before); err == nil {
			size = q
		}
		out := old.DeepCopy()
		if out == nil {
			out = v1.ResourceList{}
		}
		out[v1.ResourceStorage] = size
		return out
	}
	if had, ok := old[v1.ResourceStorage]; ok && had.Cmp(size) == 0 {
		return old
	}
	return pv.Spec.Capacity.DeepCopy()
}
