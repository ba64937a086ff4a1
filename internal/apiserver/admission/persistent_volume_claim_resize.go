package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/apiserver/registry"
)

// persistentVolumeClaimResize lets a claim ask for more only if its class can give more.
type persistentVolumeClaimResize struct{ lookup *registry.Lookup }

var _ admission.ValidationInterface = (*persistentVolumeClaimResize)(nil)

func (*persistentVolumeClaimResize) Handles(op admission.Operation) bool {
	return op == admission.Update
}

func (p *persistentVolumeClaimResize) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != claimsResource || a.GetSubresource() != "" {
		return nil
	}
	claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	old, okOld := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if !ok || !okOld || claim.Spec.Resources.Requests.Storage().Cmp(*old.Spec.Resources.Requests.Storage()) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return forbid(a, "Only bound persistent volume claims can be expanded")
	}
	expands, err := p.expands(ctx, claim, old)
	if err != nil {
		return forbid(a, "failed to get storage class %q: %w", classOf(claim), err)
	}
	if !expands {
		return forbid(a, "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
	}
	return nil
}

// expands reports whether the claim's class lets volumes grow.
func (p *persistentVolumeClaimResize) expands(ctx context.Context, claim, old *corev1.PersistentVolumeClaim) (bool, error) {
	name := classOf(claim)
	if name == "" || name != classOf(old) {
		return false, nil
	}
	class, err := registry.Get[*storagev1.StorageClass](ctx, p.lookup, classesResource, "", name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion, nil
}

// classOf returns the name of a claim's class. The old annotation comes before the field.
func classOf(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}
