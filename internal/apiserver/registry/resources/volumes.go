package resources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/warnings"
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
			Warn:           warnings.Volume,
			Reset:          []string{"status"},
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[*corev1.PersistentVolume]{
			Update: func(_ context.Context, v, old *corev1.PersistentVolume) {
				v.Spec = old.Spec
				noteTransition(&v.Status, &old.Status)
			},
			ValidateUpdate: onUpdate(validation.PersistentVolumeStatus),
			Reset:          []string{"spec"},
		},
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
			Warn:           warnings.Claim,
			Reset:          []string{"status"},
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[*corev1.PersistentVolumeClaim]{
			Drop:           deps.Features.ClaimStatus,
			Update:         func(_ context.Context, c, old *corev1.PersistentVolumeClaim) { c.Spec = old.Spec },
			ValidateUpdate: onUpdate(validation.PersistentVolumeClaimStatus),
			Reset:          []string{"spec"},
		},
	}
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
