package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry/warnings"
)

// adoptAppArmor gives containers the AppArmor profile that an annotation of older releases names, where their field says
// nothing (KEP-24). Nodes read the fields alone: without this, the container would run unconfined.
func adoptAppArmor(ctx context.Context, p *corev1.Pod) {
	if p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return
	}
	pods.OldAppArmor(p.Annotations, &p.Spec, func(c *corev1.Container, key string, profile *corev1.AppArmorProfile, ofPod bool) {
		if ofPod {
			return
		}
		if profile != nil && len(validation.AppArmorProfile(nil, profile)) == 0 {
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
		warning.AddWarning(ctx, "", field.NewPath("metadata", "annotations").Key(key).String()+": "+warnings.OldAppArmor)
	})
}
