package validation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podContext) mounts(at path, ctr *corev1.Container) {
	names, paths := map[string]bool{}, map[string]bool{}
	for _, d := range ctr.VolumeDevices {
		names[d.Name], paths[d.DevicePath] = true, true
	}
	seen := map[string]bool{}
	for i := range ctr.VolumeMounts {
		m, item := &ctr.VolumeMounts[i], at.Index(i)
		c.present(item.Child("name"), m.Name)
		if c.volumes[m.Name] == nil {
			c.add(field.NotFound(item.Child("name"), m.Name))
		}
		c.present(item.Child("mountPath"), m.MountPath)
		if seen[m.MountPath] {
			c.invalid(item.Child("mountPath"), m.MountPath, "must be unique")
		}
		seen[m.MountPath] = true
		if names[m.Name] {
			c.invalid(item.Child("name"), m.Name, "must not already exist in volumeDevices")
		}
		if paths[m.MountPath] {
			c.invalid(item.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices")
		}
		if m.SubPath != "" {
			c.descending(at.Child("subPath"), m.SubPath)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				c.invalid(item.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
			}
			c.descending(at.Child("subPathExpr"), m.SubPathExpr)
		}
		c.propagation(at.Child("mountPropagation"), m, ctr)
		c.recursiveReadOnly(at.Child("recursiveReadOnly"), m)
	}
}

func (c *podContext) propagation(at path, m *corev1.VolumeMount, ctr *corev1.Container) {
	if m.MountPropagation == nil {
		return
	}
	oneOf(c.problems, at, *m.MountPropagation,
		corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	sc := ctr.SecurityContext
	privileged := sc != nil && sc.Privileged != nil && *sc.Privileged
	if *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
		c.forbidden(at, "Bidirectional mount propagation is available only to privileged containers")
	}
}

func (c *podContext) recursiveReadOnly(at path, m *corev1.VolumeMount) {
	if m.RecursiveReadOnly == nil {
		return
	}
	switch *m.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyDisabled:
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !m.ReadOnly {
			c.forbidden(at, "may only be specified when readOnly is true")
		}
		if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
			c.forbidden(at, "may only be specified when mountPropagation is None or not specified")
		}
	default:
		c.add(notSupported(at, *m.RecursiveReadOnly, []corev1.RecursiveReadOnlyMode{
			corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled,
		}))
	}
}

func (c *podContext) devices(at path, ctr *corev1.Container) {
	mounted, mountPaths := map[string]bool{}, map[string]bool{}
	for _, m := range ctr.VolumeMounts {
		mounted[m.Name], mountPaths[m.MountPath] = true, true
	}
	names, paths := map[string]bool{}, map[string]bool{}
	for i, d := range ctr.VolumeDevices {
		item := at.Index(i)
		c.present(item.Child("name"), d.Name)
		c.present(item.Child("devicePath"), d.DevicePath)
		switch v := c.volumes[d.Name]; {
		case v == nil:
			c.add(field.NotFound(item.Child("name"), d.Name))
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			c.invalid(item.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode")
		}
		if names[d.Name] {
			c.invalid(item.Child("name"), d.Name, "must be unique")
		}
		if paths[d.DevicePath] {
			c.invalid(item.Child("devicePath"), d.DevicePath, "must be unique")
		}
		var steps problems
		if steps.noBacksteps(at, d.DevicePath); len(steps.list) > 0 {
			c.invalid(item.Child("devicePath"), d.DevicePath, "can not contain backsteps ('..')")
		} else {
			paths[d.DevicePath] = true
		}
		if mounted[d.Name] {
			c.invalid(item.Child("name"), d.Name, "must not already exist in volumeMounts")
		}
		if mountPaths[d.DevicePath] {
			c.invalid(item.Child("devicePath"), d.DevicePath, "must not already exist as a path in volumeMounts")
		}
		if d.Name != "" {
			names[d.Name] = true
		}
	}
}
