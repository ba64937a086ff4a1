// Package attachments is the vocabulary of volumes that are attached to nodes: how they are called in a node's status,
// and how the VolumeAttachment of one is called. The controller that attaches and the kubelet that waits for it both use
// it, and upstream's have the same names. It is pure.
package attachments

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const (
	// prefix is what names of CSI volumes in a node's status begin with; the others are of volumes that nodes attach themselves.
	prefix      = "kubernetes.io/csi/"
	iscsiPrefix = ISCSI + "/"
	fcPrefix    = FC + "/"
	// separator stands between the driver's name, which cannot contain it, and the volume's handle, which can.
	separator = "^"
	// ManagedAnnotation is what a node has whose volumes are attached by a controller: every one with a kubelet of today.
	ManagedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"
)

// VolumeName returns the name that a CSI volume has in a node's volumesAttached and volumesInUse.
func VolumeName(driver, handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(prefix + driver + separator + handle)
}

// Kinds of volumes that a node attaches itself. They have no VolumeAttachment: that a node may have one is said in its
// volumesAttached, and nowhere else.
const (
	ISCSI = "kubernetes.io/iscsi"
	FC    = "kubernetes.io/fc"
)

// ISCSIName returns the name that a disk of an iSCSI target has in a node's status.
func ISCSIName(portal, iqn string, lun int32) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fmt.Sprintf("%s%s:%s:%d", iscsiPrefix, portal, iqn, lun))
}

// FCName returns the name that a disk at Fibre Channel has in a node's status; "" if there is no source, or it names none.
func FCName(f *v1.FCVolumeSource) v1.UniqueVolumeName {
	switch {
	case f == nil:
	case len(f.TargetWWNs) > 0 && f.Lun != nil:
		return v1.UniqueVolumeName(fmt.Sprintf("%s%v:%d", fcPrefix, f.TargetWWNs, *f.Lun))
	case len(f.WWIDs) > 0:
		return v1.UniqueVolumeName(fmt.Sprintf("%s%v", fcPrefix, f.WWIDs))
	}
	return ""
}

// ByNode returns the name of a volume that a node attaches itself, and that a PersistentVolume is for; "" for all others.
func ByNode(src *v1.PersistentVolumeSource) v1.UniqueVolumeName {
	if i := src.ISCSI; i != nil {
		return ISCSIName(i.TargetPortal, i.IQN, i.Lun)
	}
	return FCName(src.FC)
}

// OwnByNode is ByNode for a volume that a pod describes itself.
func OwnByNode(src *v1.VolumeSource) v1.UniqueVolumeName {
	if i := src.ISCSI; i != nil {
		return ISCSIName(i.TargetPortal, i.IQN, i.Lun)
	}
	return FCName(src.FC)
}

// ISCSISecret returns where the secret of an iSCSI volume is: in the namespace of its claim, unless it says another one. It
// is nil if there is none.
func ISCSISecret(pv *v1.PersistentVolume) *v1.SecretReference {
	if pv.Spec.ISCSI == nil || pv.Spec.ISCSI.SecretRef == nil {
		return nil
	}
	ref := *pv.Spec.ISCSI.SecretRef
	if ref.Namespace == "" && pv.Spec.ClaimRef != nil {
		ref.Namespace = pv.Spec.ClaimRef.Namespace
	}
	return &ref
}

// KindByNode returns the kind that a name says, of the volumes that a node attaches itself; "" for all others.
func KindByNode(name v1.UniqueVolumeName) string {
	switch {
	case strings.HasPrefix(string(name), iscsiPrefix):
		return ISCSI
	case strings.HasPrefix(string(name), fcPrefix):
		return FC
	}
	return ""
}

// SplitVolumeName returns what VolumeName was made from; ok reports whether it is the name of a CSI volume.
func SplitVolumeName(name v1.UniqueVolumeName) (driver, handle string, ok bool) {
	rest, ok := strings.CutPrefix(string(name), prefix)
	if !ok {
		return "", "", false
	}
	driver, handle, ok = strings.Cut(rest, separator)
	return driver, handle, ok && driver != "" && handle != ""
}

// Name returns the name of the VolumeAttachment of a CSI volume and a node.
func Name(driver, handle, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// IsName reports whether a VolumeAttachment has a name that Name could have returned.
func IsName(name string) bool {
	sum, ok := strings.CutPrefix(name, "csi-")
	if !ok || len(sum) != hex.EncodedLen(sha256.Size) {
		return false
	}
	_, err := hex.DecodeString(sum)
	return err == nil
}
