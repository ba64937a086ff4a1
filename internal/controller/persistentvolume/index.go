package persistentvolume

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// Indices: of claims by what they want, of volumes by who may have them.
const (
	byWant  = "wherry/wantsvolume"
	byClaim = "wherry/offersvolume"
)

// unclassed are claims without a volume that wait for a default class.
const unclassed = "unclassed"

// Values of both indices: a class of volumes, one volume, one claim. The names of the three may be alike.
func ofClass(class string) string { return "class/" + class }
func ofVolume(name string) string { return "volume/" + name }
func ofClaim(key string) string   { return "claim/" + key }

// wants returns what a claim waits for: volumes of its class, and a default class if it names none. A claim that names
// a volume has only that, before it is bound and afterwards.
func wants(claim *v1.PersistentVolumeClaim) []string {
	switch {
	case claim.Spec.VolumeName != "":
		return []string{ofVolume(claim.Spec.VolumeName)}
	case done(claim):
		return nil
	}
	out := []string{ofClass(volume.GetPersistentVolumeClaimClass(claim))}
	if !volume.PersistentVolumeClaimHasClass(claim) {
		out = append(out, unclassed)
	}
	return out
}

// done reports whether a claim was bound.
func done(claim *v1.PersistentVolumeClaim) bool {
	return metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
}

// offers returns for whom a volume is: the claim that it names, or any of its class if it is free.
func offers(pv *v1.PersistentVolume) []string {
	switch {
	case pv.Spec.ClaimRef != nil:
		return []string{ofClaim(refKey(pv.Spec.ClaimRef))}
	case pv.Status.Phase == v1.VolumeAvailable:
		return []string{ofClass(volume.GetPersistentVolumeClass(pv))}
	}
	return nil
}

func refKey(ref *v1.ObjectReference) string { return ref.Namespace + "/" + ref.Name }

func keyOf(obj metav1.Object) string { return cache.MetaObjectToName(obj).String() }
