// Package attachments is the vocabulary of volumes that are attached to nodes: how they are called in a node's status,
// and how the VolumeAttachment of one is called. The controller that attaches and the kubelet that waits for it both use
// it, and upstream's have the same names. It is pure.
package attachments

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const (
	// prefix is what names of CSI volumes in a node's status begin with.
	prefix = "kubernetes.io/csi/"
	// separator stands between the driver's name, which cannot contain it, and the volume's handle, which can.
	separator = "^"
	// ManagedAnnotation is what a node has whose volumes are attached by a controller: every one with a kubelet of today.
	ManagedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"
)

// VolumeName returns the name that a CSI volume has in a node's volumesAttached and volumesInUse.
func VolumeName(driver, handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(prefix + driver + separator + handle)
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
