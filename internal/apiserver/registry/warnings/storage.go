package warnings

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const oldClassAnnotation = `deprecated since v1.8; use "storageClassName" attribute instead`

// Volume warns of what is deprecated in volumes, and of kinds that no longer work.
func Volume(_ context.Context, v *corev1.PersistentVolume) []string {
	var out list
	annotations, spec := field.NewPath("metadata", "annotations"), field.NewPath("spec")
	if _, ok := v.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		out.warn(annotations.Key(corev1.BetaStorageClassAnnotation), oldClassAnnotation)
	}
	if _, ok := v.Annotations[corev1.MountOptionAnnotation]; ok {
		out.warn(annotations.Key(corev1.MountOptionAnnotation), `deprecated since v1.31; use "mountOptions" attribute instead`)
	}
	if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		out.warn(spec.Child("persistentVolumeReclaimPolicy"),
			"The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	if a := v.Spec.NodeAffinity; a != nil {
		out = append(out, NodeSelector(spec.Child("nodeAffinity", "required"), a.Required)...)
	}
	out.oldVolumes(spec, map[string]bool{
		"cephfs": v.Spec.CephFS != nil, "photonPersistentDisk": v.Spec.PhotonPersistentDisk != nil, "scaleIO": v.Spec.ScaleIO != nil,
		"storageOS": v.Spec.StorageOS != nil, "glusterfs": v.Spec.Glusterfs != nil, "rbd": v.Spec.RBD != nil,
	})
	return out
}

// oldVolumes are kinds of volumes that no longer work.
var oldVolumes = map[string]string{
	"photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
	"gitRepo":              "deprecated in v1.11, and disabled by default in v1.33+",
	"scaleIO":              "deprecated in v1.16, non-functional in v1.22+",
	"flocker":              "deprecated in v1.22, non-functional in v1.25+",
	"storageOS":            "deprecated in v1.22, non-functional in v1.25+",
	"quobyte":              "deprecated in v1.22, non-functional in v1.25+",
	"glusterfs":            "deprecated in v1.25, non-functional in v1.26+",
	"cephfs":               "deprecated in v1.28, non-functional in v1.31+",
	"rbd":                  "deprecated in v1.28, non-functional in v1.31+",
}

// oldVolumes warns of such a kind, if it is there.
func (l *list) oldVolumes(at *field.Path, has map[string]bool) {
	for name, there := range has {
		if there {
			l.warn(at.Child(name), "%s", oldVolumes[name])
		}
	}
}

// Claim warns of what is deprecated in claims, and of parts of bytes.
func Claim(_ context.Context, c *corev1.PersistentVolumeClaim) []string {
	var out list
	if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		out.warn(field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation), oldClassAnnotation)
	}
	return append(out, ClaimSpec(field.NewPath("spec"), &c.Spec)...)
}

// ClaimSpec warns of parts of bytes.
func ClaimSpec(at *field.Path, spec *corev1.PersistentVolumeClaimSpec) []string {
	var out list
	for _, amount := range []struct {
		name string
		list corev1.ResourceList
	}{{"requests", spec.Resources.Requests}, {"limits", spec.Resources.Limits}} {
		out.fractions(at.Child("resources", amount.name), amount.list, corev1.ResourceStorage)
	}
	return out
}

// StorageClass warns of deprecated labels of nodes.
func StorageClass(_ context.Context, c *storagev1.StorageClass) []string {
	var out list
	for i, term := range c.AllowedTopologies {
		for j, e := range term.MatchLabelExpressions {
			if text := oldNodeLabels[e.Key]; text != "" {
				out.warn(field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child("key"), "%s", text)
			}
		}
	}
	return out
}

// StorageCapacity warns of deprecated labels of nodes.
func StorageCapacity(_ context.Context, c *storagev1.CSIStorageCapacity) []string {
	return NodeLabels(field.NewPath("nodeTopology"), c.NodeTopology)
}

// CSIDriver warns if a driver receives tokens in volume attributes, because drivers may
// log these.
func CSIDriver(_ context.Context, d *storagev1.CSIDriver) []string {
	if len(d.Spec.TokenRequests) == 0 || d.Spec.ServiceAccountTokenInSecrets != nil {
		return nil
	}
	return []string{"spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"}
}

// ChangedCSIDriver does the same, if the tokens are other ones than before.
func ChangedCSIDriver(ctx context.Context, d, old *storagev1.CSIDriver) []string {
	if apiequality.Semantic.DeepEqual(d.Spec.TokenRequests, old.Spec.TokenRequests) {
		return nil
	}
	return CSIDriver(ctx, d)
}
