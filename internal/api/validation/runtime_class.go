package validation

import (
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// RuntimeClass checks a runtime class.
func RuntimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	p := &problems{}
	if p.present(field.NewPath("handler"), c.Handler) {
		p.label(field.NewPath("handler"), c.Handler)
	}
	if c.Overhead != nil {
		p.requirements(field.NewPath("overhead"), &corev1.ResourceRequirements{Limits: c.Overhead.PodFixed}, nil, p.containerResourceName)
	}
	if s := c.Scheduling; s != nil {
		at := field.NewPath("scheduling")
		p.addAll(metavalidation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector")))
		p.tolerations(at.Child("tolerations"), s.Tolerations)
	}
	return p.list
}

// RuntimeClassUpdate checks a runtime class that replaces old.
func RuntimeClassUpdate(c, old *nodev1.RuntimeClass) field.ErrorList {
	p := &problems{list: RuntimeClass(c)}
	immutable(p, field.NewPath("handler"), c.Handler, old.Handler)
	return p.list
}
