package resources

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
)

func persistentVolumes() registry.Row[*corev1.PersistentVolume] {
	return registry.Row[*corev1.PersistentVolume]{
		Resource:   gvr(corev1.SchemeGroupVersion, "persistentvolumes"),
		Kind:       "PersistentVolume",
		Singular:   "persistentvolume",
		ShortNames: []string{"pv"},
		New:        func() *corev1.PersistentVolume { return &corev1.PersistentVolume{} },
		NewList:    list[corev1.PersistentVolumeList](),
		Table:      printers.PersistentVolumes,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.PersistentVolume]{
			Create: func(_ context.Context, v *corev1.PersistentVolume) {
				v.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: new(metav1.Now())}
			},
			Update:         func(_ context.Context, v, old *corev1.PersistentVolume) { v.Status = old.Status },
			Validate:       onCreate(validation.PersistentVolume),
			ValidateUpdate: onUpdate(validation.PersistentVolumeUpdate),
			Warn:           oldWaysOfVolumes,
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[*corev1.PersistentVolume]{
			Update: func(_ context.Context, v, old *corev1.PersistentVolume) {
				v.Spec = old.Spec
				noteTransition(&v.Status, &old.Status)
			},
			ValidateUpdate: onUpdate(validation.PersistentVolumeStatus),
			Reset:          []string{"spec"},
		},
		Fields:      func(v *corev1.PersistentVolume) fields.Set { return fields.Set{"name": v.Name} },
		FieldLabels: []string{"name"},
	}
}

// noteTransition writes when a volume got its phase, unless whoever writes the phase says it.
func noteTransition(now, was *corev1.PersistentVolumeStatus) {
	said := now.LastPhaseTransitionTime
	switch {
	case now.Phase == was.Phase && said == nil:
		now.LastPhaseTransitionTime = was.LastPhaseTransitionTime
	case now.Phase != was.Phase && (said == nil || said.Equal(was.LastPhaseTransitionTime)):
		now.LastPhaseTransitionTime = new(metav1.Now())
	}
}

func persistentVolumeClaims(deps Deps) registry.Row[*corev1.PersistentVolumeClaim] {
	return registry.Row[*corev1.PersistentVolumeClaim]{
		Resource:   gvr(corev1.SchemeGroupVersion, "persistentvolumeclaims"),
		Kind:       "PersistentVolumeClaim",
		Singular:   "persistentvolumeclaim",
		ShortNames: []string{"pvc"},
		Namespaced: true,
		New:        func() *corev1.PersistentVolumeClaim { return &corev1.PersistentVolumeClaim{} },
		NewList:    list[corev1.PersistentVolumeClaimList](),
		Table:      printers.PersistentVolumeClaims,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*corev1.PersistentVolumeClaim]{
			Create: func(_ context.Context, c *corev1.PersistentVolumeClaim) {
				c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
				settleDataSources(&c.Spec, nil)
			},
			Update: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) {
				c.Status = old.Status
				settleDataSources(&c.Spec, &old.Spec)
			},
			Validate:       onCreate(validation.PersistentVolumeClaim),
			ValidateUpdate: onUpdate(validation.PersistentVolumeClaimUpdate),
			Warn:           oldWaysOfClaims,
			Reset:          []string{"status"},
		},
		Status: &registry.Strategy[*corev1.PersistentVolumeClaim]{
			Drop:           deps.Features.ClaimStatus,
			Update:         func(_ context.Context, c, old *corev1.PersistentVolumeClaim) { c.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.PersistentVolumeClaimStatus),
			Reset:          []string{"spec"},
		},
	}
}

const oldClassAnnotation = `deprecated since v1.8; use "storageClassName" attribute instead`

// oldWaysOfVolumes warns of what is deprecated in volumes, and of kinds that no longer work.
func oldWaysOfVolumes(_ context.Context, v *corev1.PersistentVolume) []string {
	var out []string
	warn := func(at *field.Path, text string) { out = append(out, fmt.Sprintf("%s: %s", at, text)) }
	annotations, spec := field.NewPath("metadata", "annotations"), field.NewPath("spec")
	if _, ok := v.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		warn(annotations.Key(corev1.BetaStorageClassAnnotation), oldClassAnnotation)
	}
	if _, ok := v.Annotations[corev1.MountOptionAnnotation]; ok {
		warn(annotations.Key(corev1.MountOptionAnnotation), `deprecated since v1.31; use "mountOptions" attribute instead`)
	}
	if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		warn(spec.Child("persistentVolumeReclaimPolicy"),
			"The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	if a := v.Spec.NodeAffinity; a != nil && a.Required != nil {
		for i, term := range a.Required.NodeSelectorTerms {
			at := spec.Child("nodeAffinity", "required", "nodeSelectorTerms").Index(i).Child("matchExpressions")
			for j, e := range term.MatchExpressions {
				if text, ok := oldNodeLabels[e.Key]; ok {
					warn(at.Index(j).Child("key"), text)
				}
			}
		}
	}
	for _, gone := range []struct {
		is          bool
		name, since string
	}{
		{v.Spec.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
		{v.Spec.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
		{v.Spec.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
		{v.Spec.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
		{v.Spec.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
		{v.Spec.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
	} {
		if gone.is {
			warn(spec.Child(gone.name), gone.since)
		}
	}
	return out
}

// oldWaysOfClaims warns of what is deprecated in claims, and of parts of bytes.
func oldWaysOfClaims(_ context.Context, c *corev1.PersistentVolumeClaim) []string {
	var out []string
	warn := func(at *field.Path, text string) { out = append(out, fmt.Sprintf("%s: %s", at, text)) }
	if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		warn(field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation), oldClassAnnotation)
	}
	at := field.NewPath("spec", "resources")
	for _, amount := range []struct {
		name string
		list corev1.ResourceList
	}{{"requests", c.Spec.Resources.Requests}, {"limits", c.Spec.Resources.Limits}} {
		if q := amount.list[corev1.ResourceStorage]; q.MilliValue()%1000 != 0 {
			warn(at.Child(amount.name).Key(string(corev1.ResourceStorage)),
				fmt.Sprintf("fractional byte value %q is invalid, must be an integer", q.String()))
		}
	}
	return out
}

// settleDataSources gives a claim's data source both of its forms (KEP-1495). Clients that know only dataSource must
// find it there, and their updates must not take dataSourceRef away.
func settleDataSources(spec, old *corev1.PersistentVolumeClaimSpec) {
	if elsewhere(spec.DataSourceRef) && (old == nil || old.DataSourceRef == nil) {
		spec.DataSourceRef = nil // alpha, off by default
	}
	had := old != nil && (old.DataSource != nil || old.DataSourceRef != nil)
	if !had && spec.DataSourceRef == nil && !claimOrSnapshot(spec.DataSource) {
		spec.DataSource = nil // as in the time before other sources were possible
	}
	bothDataSources(spec)
	if old != nil {
		bothDataSources(old) // it may have been stored before they were settled
	}
}

// elsewhere reports whether a source is in a namespace that it names.
func elsewhere(ref *corev1.TypedObjectReference) bool {
	return ref != nil && ptr.Deref(ref.Namespace, "") != ""
}

func claimOrSnapshot(d *corev1.TypedLocalObjectReference) bool {
	if d == nil {
		return false
	}
	switch ptr.Deref(d.APIGroup, "") {
	case "":
		return d.Kind == "PersistentVolumeClaim"
	case "snapshot.storage.k8s.io":
		return d.Kind == "VolumeSnapshot"
	}
	return false
}

func bothDataSources(spec *corev1.PersistentVolumeClaimSpec) {
	d, ref := spec.DataSource, spec.DataSourceRef
	switch {
	case d != nil && ref == nil:
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: d.APIGroup, Kind: d.Kind, Name: d.Name}
	case d == nil && ref != nil && !elsewhere(ref):
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}
	}
}
