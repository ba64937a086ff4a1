package attachdetach

import (
	"slices"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/controller/claimusers"
)

// Indices: of volumes and nodes by the names of CSI volumes, of pods and attachments by the node, of attachments by the
// PersistentVolume.
const (
	byName   = "wherry/csivolume"
	byNode   = "wherry/attachnode"
	byVolume = "wherry/attachvolume"
)

// translator knows the CSI drivers that have taken over from Kubernetes' own kinds of volumes.
var translator = csitranslation.New()

// nameOf returns the name of the CSI volume that a PersistentVolume is for, also if it is of a kind from which a driver
// has taken over; "" if it is of another kind.
func nameOf(pv *v1.PersistentVolume) v1.UniqueVolumeName {
	if pv.Spec.CSI == nil {
		if !translator.IsPVMigratable(pv) {
			return ""
		}
		translated, err := translator.TranslateInTreePVToCSI(logr.Discard(), pv)
		if err != nil || translated.Spec.CSI == nil {
			return "" // what it says makes no sense to its driver either
		}
		pv = translated
	}
	return attachments.VolumeName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)
}

func namesOf(pv *v1.PersistentVolume) []string {
	if name := nameOf(pv); name != "" {
		return []string{string(name)}
	}
	return nil
}

// mentioned returns the names of the CSI volumes that a node reports to have, or to use.
func mentioned(n *v1.Node) []string {
	var out []string
	add := func(name v1.UniqueVolumeName) {
		if _, _, ok := attachments.SplitVolumeName(name); ok && !slices.Contains(out, string(name)) {
			out = append(out, string(name))
		}
	}
	for _, a := range n.Status.VolumesAttached {
		add(a.Name)
	}
	for _, name := range n.Status.VolumesInUse {
		add(name)
	}
	return out
}

// nodeOfUser is the node of a pod that has claims.
func nodeOfUser(p *v1.Pod) []string {
	if p.Spec.NodeName == "" || len(claimusers.ClaimsOf(p)) == 0 {
		return nil
	}
	return []string{p.Spec.NodeName}
}

func nodeOf(a *storagev1.VolumeAttachment) []string { return []string{a.Spec.NodeName} }

// volumeOf is the PersistentVolume of an attachment. One for a volume that a pod describes itself has none: nobody here
// makes such.
func volumeOf(a *storagev1.VolumeAttachment) []string {
	if a.Spec.Source.PersistentVolumeName == nil {
		return nil
	}
	return []string{*a.Spec.Source.PersistentVolumeName}
}

// isFor reports whether an attachment is the one of the volume and its node.
func isFor(a *storagev1.VolumeAttachment, name v1.UniqueVolumeName) bool {
	driver, handle, ok := attachments.SplitVolumeName(name)
	return ok && a.Name == attachments.Name(driver, handle, a.Spec.NodeName)
}
