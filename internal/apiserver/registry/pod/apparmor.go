package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/validation"
)

// adoptAppArmor gives containers the AppArmor profile that an annotation of older releases names, where their field says
// nothing (KEP-24). Nodes read the fields alone: without this, the container would run unconfined.
func adoptAppArmor(ctx context.Context, p *corev1.Pod) {
	if p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return
	}
	var ofPod *corev1.AppArmorProfile
	if p.Spec.SecurityContext != nil {
		ofPod = p.Spec.SecurityContext.AppArmorProfile
	}
	for c := range pods.AllContainers(&p.Spec) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		annotation, ok := p.Annotations[key]
		if !ok || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			continue
		}
		profile := pods.AppArmorOf(annotation)
		if len(validation.AppArmorProfile(nil, profile)) > 0 {
			profile = nil
		}
		if profile != nil && apiequality.Semantic.DeepEqual(profile, ofPod) {
			continue
		}
		if profile != nil {
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
		at := field.NewPath("metadata", "annotations").Key(key)
		warning.AddWarning(ctx, "", at.String()+`: deprecated since v1.30; use the "appArmorProfile" field instead`)
	}
}
