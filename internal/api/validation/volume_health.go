package validation

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

// volumesHealth checks the health of a pod's volumes.
func (p *problems) volumesHealth(at path, list []corev1.PodVolumeHealth) {
	seen := map[string]bool{}
	for i, v := range list {
		at := at.Index(i)
		if v.Name == "" {
			p.required(at.Child("name"), "")
		} else if seen[v.Name] {
			p.add(field.Duplicate(at.Child("name"), v.Name))
		}
		seen[v.Name] = true
		p.volumeConditions(at.Child("healthConditions"), v.HealthConditions)
	}
}

// volumeConditions checks what is wrong with a volume.
func (p *problems) volumeConditions(at path, list []corev1.VolumeHealthCondition) {
	type key struct{ Status, Reason string }
	seen := map[key]bool{}
	listed(p, at, list, pods.MaxHealthConditions, func(at path, c *corev1.VolumeHealthCondition) {
		oneOf(p, at.Child("status"), c.Status, corev1.VolumeHealthInaccessible, corev1.VolumeHealthDataLoss, corev1.VolumeHealthDegraded)
		p.healthWords(at, c.Reason, c.Message)
		k := key{string(c.Status), c.Reason}
		if seen[k] {
			p.add(field.Duplicate(at, k))
		}
		seen[k] = true
	})
}

// CSINodeStatus checks the health of the storage behind a node's drivers.
func CSINodeStatus(n, _ *storagev1.CSINode) field.ErrorList {
	p := &problems{}
	seen := map[string]bool{}
	for i, h := range n.Status.StorageHealth {
		at := field.NewPath("status", "storageHealth").Index(i)
		p.csiDriver(at.Child("name"), h.Name)
		if seen[h.Name] {
			p.add(field.Duplicate(at.Child("name"), h.Name))
		}
		seen[h.Name] = true
		listed(p, at.Child("healthConditions"), h.HealthConditions, pods.MaxHealthConditions, p.storageCondition)
	}
	return p.list
}

func (p *problems) storageCondition(at path, c *storagev1.StorageHealthCondition) {
	oneOf(p, at.Child("status"), c.Status, storagev1.StorageUnreachable, storagev1.StorageDegraded)
	p.healthWords(at, c.Reason, c.Message)
	if c.AccessMode != nil {
		oneOf(p, at.Child("accessMode"), *c.AccessMode, accessModes...)
	}
	if c.VolumeMode != nil {
		oneOf(p, at.Child("volumeMode"), *c.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	}
}

func (p *problems) healthWords(at path, reason, message string) {
	switch {
	case reason == "":
		p.required(at.Child("reason"), "")
	case len(reason) > pods.MaxHealthReason:
		p.add(field.TooLong(at.Child("reason"), "", pods.MaxHealthReason))
	}
	if len(message) > pods.MaxHealthMessage {
		p.add(field.TooLong(at.Child("message"), "", pods.MaxHealthMessage))
	}
}
