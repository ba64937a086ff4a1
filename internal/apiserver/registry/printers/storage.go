package printers

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/apiserver/registry"
)

func boolean(name, description string) metav1.TableColumnDefinition {
	return registry.Column(name, "boolean", "", description, false)
}

// or returns what p points to, or value if p is nil.
func or[T any](p *T, value T) T {
	if p == nil {
		return value
	}
	return *p
}

// StorageClasses is the table of storage classes.
var StorageClasses = registry.Table[*storagev1.StorageClass]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Provisioner", storagev1.StorageClass{}.SwaggerDoc()["provisioner"]),
		column("ReclaimPolicy", storagev1.StorageClass{}.SwaggerDoc()["reclaimPolicy"]),
		column("VolumeBindingMode", storagev1.StorageClass{}.SwaggerDoc()["volumeBindingMode"]),
		column("AllowVolumeExpansion", storagev1.StorageClass{}.SwaggerDoc()["allowVolumeExpansion"]),
		ageColumn,
	},
	Cells: func(c *storagev1.StorageClass, now time.Time) []any {
		name := c.Name
		if classes.IsDefaultStorage(c) {
			name += " (default)"
		}
		return []any{
			name, c.Provisioner, string(or(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
			string(or(c.VolumeBindingMode, storagev1.VolumeBindingImmediate)), or(c.AllowVolumeExpansion, false), age(c, now),
		}
	},
}

// VolumeAttachments is the table of volume attachments.
var VolumeAttachments = registry.Table[*storagev1.VolumeAttachment]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		registry.Column("Attacher", "string", "name", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["attacher"], false),
		column("PV", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
		column("Node", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["nodeName"]),
		boolean("Attached", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]),
		ageColumn,
	},
	Cells: func(a *storagev1.VolumeAttachment, now time.Time) []any {
		return []any{a.Name, a.Spec.Attacher, or(a.Spec.Source.PersistentVolumeName, ""), a.Spec.NodeName, a.Status.Attached, age(a, now)}
	},
}

// CSINodes is the table of CSI nodes.
var CSINodes = registry.Table[*storagev1.CSINode]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		registry.Column("Drivers", "integer", "", "Drivers indicates the number of CSI drivers registered on the node", false),
		ageColumn,
	},
	Cells: func(n *storagev1.CSINode, now time.Time) []any {
		return []any{n.Name, int64(len(n.Spec.Drivers)), age(n, now)}
	},
}

// CSIDrivers is the table of CSI drivers.
var CSIDrivers = registry.Table[*storagev1.CSIDriver]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		boolean("AttachRequired", storagev1.CSIDriverSpec{}.SwaggerDoc()["attachRequired"]),
		boolean("PodInfoOnMount", storagev1.CSIDriverSpec{}.SwaggerDoc()["podInfoOnMount"]),
		boolean("StorageCapacity", storagev1.CSIDriverSpec{}.SwaggerDoc()["storageCapacity"]),
		column("TokenRequests", storagev1.CSIDriverSpec{}.SwaggerDoc()["tokenRequests"]),
		boolean("RequiresRepublish", storagev1.CSIDriverSpec{}.SwaggerDoc()["requiresRepublish"]),
		column("Modes", storagev1.CSIDriverSpec{}.SwaggerDoc()["volumeLifecycleModes"]),
		ageColumn,
	},
	Cells: func(d *storagev1.CSIDriver, now time.Time) []any {
		var modes, audiences []string
		for _, m := range d.Spec.VolumeLifecycleModes {
			modes = append(modes, string(m))
		}
		tokens := unset
		if d.Spec.TokenRequests != nil {
			for _, r := range d.Spec.TokenRequests {
				audiences = append(audiences, r.Audience)
			}
			tokens = strings.Join(audiences, ",")
		}
		return []any{
			d.Name, or(d.Spec.AttachRequired, true), or(d.Spec.PodInfoOnMount, false), or(d.Spec.StorageCapacity, false),
			tokens, or(d.Spec.RequiresRepublish, false), orNone(strings.Join(modes, ",")), age(d, now),
		}
	},
}

// accessModes lists the short forms, in the order in which they are printed.
var accessModes = []struct {
	mode  corev1.PersistentVolumeAccessMode
	short string
}{

	{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
}

func modes(list []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range accessModes {
		if slices.Contains(list, m.mode) {
			out = append(out, m.short)
		}
	}
	return strings.Join(out, ",")
}

// PersistentVolumes is the table of persistent volumes.
var PersistentVolumes = registry.Table[*corev1.PersistentVolume]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Capacity", corev1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"]),
		column("Access Modes", corev1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"]),
		column("Reclaim Policy", corev1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"]),
		column("Status", corev1.PersistentVolumeStatus{}.SwaggerDoc()["phase"]),
		column("Claim", corev1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"]),
		column("StorageClass", "StorageClass of the pv"),
		column("VolumeAttributesClass", "VolumeAttributesClass of the pv"),
		column("Reason", corev1.PersistentVolumeStatus{}.SwaggerDoc()["reason"]),
		ageColumn,
		wide("VolumeMode", corev1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"]),
	},
	Cells: func(v *corev1.PersistentVolume, now time.Time) []any {
		claim := ""
		if r := v.Spec.ClaimRef; r != nil {
			claim = r.Namespace + "/" + r.Name
		}
		phase := string(v.Status.Phase)
		if v.DeletionTimestamp != nil {
			phase = "Terminating"
		}
		return []any{
			v.Name, v.Spec.Capacity.Storage().String(), modes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy),
			phase, claim, v.Spec.StorageClassName, orUnset(v.Spec.VolumeAttributesClassName), v.Status.Reason, age(v, now), orUnset(v.Spec.VolumeMode),
		}
	},
}

// PersistentVolumeClaims is the table of persistent volume claims.
var PersistentVolumeClaims = registry.Table[*corev1.PersistentVolumeClaim]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Status", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"]),
		column("Volume", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"]),
		column("Capacity", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"]),
		column("Access Modes", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"]),
		column("StorageClass", "StorageClass of the pvc"),
		column("VolumeAttributesClass", "VolumeAttributesClass of the pvc"),
		ageColumn,
		wide("VolumeMode", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"]),
	},
	Cells: func(c *corev1.PersistentVolumeClaim, now time.Time) []any {
		phase, capacity, access, class := string(c.Status.Phase), "", "", ""
		if c.DeletionTimestamp != nil {
			phase = "Terminating"
		}
		if c.Spec.VolumeName != "" {
			capacity, access = c.Status.Capacity.Storage().String(), modes(c.Status.AccessModes)
		}
		if c.Spec.StorageClassName != nil {
			class = *c.Spec.StorageClassName
		}
		return []any{
			c.Name, phase, c.Spec.VolumeName, capacity, access, class,
			orUnset(c.Spec.VolumeAttributesClassName), age(c, now), orUnset(c.Spec.VolumeMode),
		}
	},
}

// CSIStorageCapacities is the table of capacities.
var CSIStorageCapacities = registry.Table[*storagev1.CSIStorageCapacity]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("StorageClassName", storagev1.CSIStorageCapacity{}.SwaggerDoc()["storageClassName"]),
		column("Capacity", storagev1.CSIStorageCapacity{}.SwaggerDoc()["capacity"]),
	},
	Cells: func(c *storagev1.CSIStorageCapacity, _ time.Time) []any {
		capacity := unset
		if c.Capacity != nil {
			capacity = c.Capacity.String()
		}
		return []any{c.Name, c.StorageClassName, capacity}
	},
}

// VolumeAttributesClasses is the table of classes of volumes' attributes.
var VolumeAttributesClasses = registry.Table[*storagev1.VolumeAttributesClass]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, column("DriverName", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]), ageColumn,
	},
	Cells: func(c *storagev1.VolumeAttributesClass, now time.Time) []any {
		return []any{c.Name, c.DriverName, age(c, now)}
	},
}
