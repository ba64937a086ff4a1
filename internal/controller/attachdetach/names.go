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

// Indices: of PersistentVolumes, nodes and pods by the names of volumes that are attached, of pods and attachments by the
// node, of attachments by the PersistentVolume. Pods are found by what they describe themselves.
const (
	byName   = "wherry/attachable"
	byNode   = "wherry/attachnode"
	byVolume = "wherry/attachvolume"
)

// translator knows the CSI drivers that have taken over from Kubernetes' own kinds of volumes.
var translator = csitranslation.New()

// nameOf returns the name of the volume that a PersistentVolume is for, also if it is of a kind from which a CSI driver has
// taken over; "" if it is of a kind that is not attached.
func nameOf(pv *v1.PersistentVolume) v1.UniqueVolumeName {
	if name := attachments.ByNode(&pv.Spec.PersistentVolumeSource); name != "" {
		return name
	}
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

// ownOf returns the names of the volumes that a pod describes itself and that are attached.
func ownOf(p *v1.Pod) []string {
	var out []string
	for i := range p.Spec.Volumes {
		if name := string(attachments.OwnByNode(&p.Spec.Volumes[i].VolumeSource)); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// ours reports whether a name in a node's status is of a volume that this controller attaches.
func ours(name v1.UniqueVolumeName) bool {
	_, _, ok := attachments.SplitVolumeName(name)
	return ok || attachments.KindByNode(name) != ""
}

// mentioned returns the names of the volumes that a node reports to have, or to use.
func mentioned(n *v1.Node) []string {
	var out []string
	add := func(name v1.UniqueVolumeName) {
		if ours(name) && !slices.Contains(out, string(name)) {
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

// nodeOfUser is the node of a pod that has claims, or describes a volume that is attached.
func nodeOfUser(p *v1.Pod) []string {
	if p.Spec.NodeName == "" || len(claimusers.ClaimsOf(p)) == 0 && len(ownOf(p)) == 0 {
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
