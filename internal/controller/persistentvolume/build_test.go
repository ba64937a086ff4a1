package persistentvolume

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// newClaim is for 1Gi, ReadWriteOnce, of the class "" unless it is changed.
func newClaim(name string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: new(""),
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func ofNamedClass(name string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

// has is for a claim that is bound to the volume.
func has(pv string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = pv, v1.ClaimBound
		mark(c, volume.AnnBindCompleted)
		mark(c, volume.AnnBoundByController)
	}
}

func modes(m ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = m }
}

// naming is for a claim that wants the volume v.
func naming(c *v1.PersistentVolumeClaim)       { c.Spec.VolumeName = "v" }
func withoutClass(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }
func claimEnds(c *v1.PersistentVolumeClaim)    { c.DeletionTimestamp = new(metav1.Now()) }
func claimIsLost(c *v1.PersistentVolumeClaim)  { c.Status.Phase = v1.ClaimLost }

func noted(key, value string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, key, value) }
}

// newVolume has 1Gi, ReadWriteOnce, no class, and is free, unless it is changed.
func newVolume(name string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	for _, f := range change {
		f(pv)
	}
	return pv
}

func of(gib string, m ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.Capacity[v1.ResourceStorage] = resource.MustParse(gib + "Gi")
		if m != nil {
			pv.Spec.AccessModes = m
		}
	}
}

func inClass(name string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = name }
}

// isOf is for a volume that the controller gave to the claim; keptFor, for one that a user keeps for it, with its UID or
// without one.
func isOf(claim string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		keptFor(claim, claim)(pv)
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, volume.AnnBoundByController, "yes")
		pv.Status.Phase = v1.VolumeBound
	}
}

func keptFor(claim, uid string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "ns", Name: claim, UID: types.UID(uid)}
	}
}

func is(phase v1.PersistentVolumePhase) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Status.Phase = phase }
}

func policy(p v1.PersistentVolumeReclaimPolicy) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.PersistentVolumeReclaimPolicy = p }
}

func madeBy(provisioner string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, volume.AnnDynamicallyProvisioned, provisioner)
	}
}

func csi(pv *v1.PersistentVolume) {
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}
}
func volumeEnds(pv *v1.PersistentVolume)   { pv.DeletionTimestamp = new(metav1.Now()) }
func block(pv *v1.PersistentVolume)        { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) }
func labelled(pv *v1.PersistentVolume)     { pv.Labels = map[string]string{"tier": "gold"} }
func inAttributes(pv *v1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = new("fast") }

func newClass(name, provisioner string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: new(storagev1.VolumeBindingImmediate)}
	for _, f := range change {
		f(c)
	}
	return c
}

func waits(c *storagev1.StorageClass) {
	c.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
}
