package persistentvolume

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"
)

// inTree is what the names of Kubernetes' own kinds of volumes begin with. None of them is made or deleted here.
const inTree = "kubernetes.io/"

// translator knows the CSI drivers that have taken over from Kubernetes' own kinds of volumes.
var translator = csitranslation.New()

// successor returns the CSI driver that has taken over from one of Kubernetes' own kinds of volumes; "" if none has.
func successor(kind string) string {
	if !translator.IsMigratableIntreePluginByName(kind) {
		return ""
	}
	driver, err := translator.GetCSINameFromInTreeName(kind)
	if err != nil {
		return "" // it is one of those that have one
	}
	return driver
}

// provisioner returns who makes the volumes of a class, or why nobody does.
func provisioner(class *storagev1.StorageClass) (name, why string) {
	if driver := successor(class.Provisioner); driver != "" {
		return driver, ""
	}
	if strings.HasPrefix(class.Provisioner, inTree) {
		return "", noPlugin(class.Provisioner)
	}
	return class.Provisioner, ""
}

func noPlugin(name string) string { return "no volume plugin matched name: " + name }

// annotated returns the claim with the annotations that ask a provisioner for a volume ("" asks nobody else than
// before), and that name the driver which has taken over from the one that was asked; nil if it has them.
func annotated(claim *v1.PersistentVolumeClaim, provisioner string) *v1.PersistentVolumeClaim {
	if provisioner == "" && len(claim.Annotations) == 0 {
		return nil
	}
	out := claim.DeepCopy()
	if provisioner != "" && claim.Annotations[volume.AnnStorageProvisioner] != provisioner {
		for _, a := range []string{volume.AnnBetaStorageProvisioner, volume.AnnStorageProvisioner} {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, a, provisioner)
		}
	}
	asked, ok := out.Annotations[volume.AnnStorageProvisioner]
	if !ok {
		asked, ok = out.Annotations[volume.AnnBetaStorageProvisioner]
	}
	if ok {
		migrate(&out.ObjectMeta, asked)
	}
	if equality.Semantic.DeepEqual(claim.Annotations, out.Annotations) {
		return nil
	}
	return out
}

// migrate writes which driver has taken over from a kind of volumes.
func migrate(m *metav1.ObjectMeta, kind string) {
	if driver := successor(kind); driver != "" {
		metav1.SetMetaDataAnnotation(m, volume.AnnMigratedTo, driver)
		return
	}
	delete(m.Annotations, volume.AnnMigratedTo)
}

// guarded returns the volume with the annotation and the finalizers that its way of deletion needs; nil if it has them.
// They concern only volumes that were made by one of Kubernetes' own kinds: external provisioners have a finalizer of
// their own.
func guarded(pv *v1.PersistentVolume) *v1.PersistentVolume {
	kind, ok := pv.Annotations[volume.AnnDynamicallyProvisioned]
	if !ok {
		return nil
	}
	out := pv.DeepCopy()
	migrate(&out.ObjectMeta, kind)
	switch {
	case successor(kind) != "":
		drop(out, volume.PVDeletionInTreeProtectionFinalizer)
	case strings.HasPrefix(kind, inTree):
		drop(out, volume.PVDeletionProtectionFinalizer)
		switch pv.Spec.PersistentVolumeReclaimPolicy {
		case v1.PersistentVolumeReclaimDelete:
			if !slices.Contains(out.Finalizers, volume.PVDeletionInTreeProtectionFinalizer) {
				out.Finalizers = append(out.Finalizers, volume.PVDeletionInTreeProtectionFinalizer)
			}
		case v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimRecycle:
			drop(out, volume.PVDeletionInTreeProtectionFinalizer)
		}
	}
	if equality.Semantic.DeepEqual(pv.ObjectMeta, out.ObjectMeta) {
		return nil
	}
	return out
}

func drop(pv *v1.PersistentVolume, finalizer string) {
	pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(f string) bool { return f == finalizer })
}

// undeletable says why nobody deletes a volume whose policy is Delete; "" if an external provisioner does.
func undeletable(pv *v1.PersistentVolume) string {
	if maker := pv.Annotations[volume.AnnDynamicallyProvisioned]; maker != "" {
		if strings.HasPrefix(maker, inTree) {
			return noPlugin(maker)
		}
		return ""
	}
	switch s := &pv.Spec.PersistentVolumeSource; {
	case s.CSI != nil:
		return ""
	case s.NFS != nil, s.HostPath != nil:
		return `error getting deleter volume plugin for volume "` + pv.Name + `": no deletable volume plugin matched`
	}
	return `error getting deleter volume plugin for volume "` + pv.Name + `": no volume plugin matched`
}
