package validation

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var accessModes = []corev1.PersistentVolumeAccessMode{
	corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod,
}

func (p *problems) accessModes(at path, modes []corev1.PersistentVolumeAccessMode) {
	alone, others := false, false
	for _, m := range modes {
		oneOf(p, at, m, accessModes...)
		alone = alone || m == corev1.ReadWriteOncePod
		others = others || m != corev1.ReadWriteOncePod
	}
	if alone && others {
		p.forbidden(at, "may not use ReadWriteOncePod with other access modes")
	}
}

func (p *problems) positiveQuantity(at path, q resource.Quantity) {
	if q.Sign() <= 0 {
		p.invalid(at, q.String(), "must be greater than zero")
	}
}

func (p *problems) className(at path, name *string) {
	if name != nil && *name != "" {
		p.subdomain(at, *name)
	}
}

// claimSpec checks the spec of a claim.
func (p *problems) claimSpec(at path, spec *corev1.PersistentVolumeClaimSpec) {
	if len(spec.AccessModes) == 0 {
		p.required(at.Child("accessModes"), "at least 1 access mode is required")
	}
	p.accessModes(at.Child("accessModes"), spec.AccessModes)
	if spec.Selector != nil {
		p.addAll(metavalidation.ValidateLabelSelector(spec.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	}
	storage := at.Child("resources").Key(string(corev1.ResourceStorage))
	if q, ok := spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		p.required(storage, "")
	} else {
		p.positiveQuantity(storage, q)
	}
	p.className(at.Child("storageClassName"), spec.StorageClassName)
	p.className(at.Child("volumeAttributesClassName"), spec.VolumeAttributesClassName)
	if spec.VolumeMode != nil {
		oneOf(p, at.Child("volumeMode"), *spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	}
	if d := spec.DataSource; d != nil {
		p.dataSource(at.Child("dataSource"), d.APIGroup, d.Kind, d.Name)
	}
	if d := spec.DataSourceRef; d != nil {
		p.dataSource(at.Child("dataSourceRef"), d.APIGroup, d.Kind, d.Name)
	}
}

func (p *problems) dataSource(at path, group *string, kind, name string) {
	p.present(at.Child("name"), name)
	p.present(at.Child("kind"), kind)
	if (group == nil || *group == "") && kind != "PersistentVolumeClaim" {
		p.invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
	}
	if group != nil && *group != "" {
		p.subdomain(at.Child("apiGroup"), *group)
	}
}

// PersistentVolumeClaim checks a new claim.
func PersistentVolumeClaim(c *corev1.PersistentVolumeClaim) field.ErrorList {
	p := &problems{}
	p.claimSpec(field.NewPath("spec"), &c.Spec)
	return p.list
}

// PersistentVolumeClaimUpdate checks a claim that replaces old: it can be bound once, and can grow.
func PersistentVolumeClaimUpdate(c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	p := &problems{}
	at := field.NewPath("spec")
	p.claimSpec(at, &c.Spec)
	is, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	if was.VolumeName == "" {
		was.VolumeName = is.VolumeName
	}
	if was.StorageClassName == nil {
		was.StorageClassName = is.StorageClassName // the default class can be set later
	}
	if c.Status.Phase == corev1.ClaimBound {
		if is.Resources.Requests != nil {
			is.Resources.Requests[corev1.ResourceStorage] = old.Spec.Resources.Requests[corev1.ResourceStorage]
		}
		is.VolumeAttributesClassName = was.VolumeAttributesClassName
	}
	if !apiequality.Semantic.DeepEqual(is, was) {
		p.forbidden(at, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v", diff.Diff(was, is))
	}
	size, before := c.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if has := old.Status.Capacity[corev1.ResourceStorage]; size.Cmp(before) < 0 && size.Cmp(has) <= 0 {
		p.forbidden(at.Child("resources", "requests", "storage"), "field can not be less than status.capacity")
	}
	return p.list
}

// PersistentVolumeClaimStatus checks a claim's status.
func PersistentVolumeClaimStatus(c, _ *corev1.PersistentVolumeClaim) field.ErrorList {
	p := &problems{}
	at := field.NewPath("status")
	if len(c.ResourceVersion) == 0 {
		p.required(field.NewPath("metadata", "resourceVersion"), "")
	}
	for name, q := range c.Status.Capacity {
		p.quantityNotNegative(at.Child("capacity").Key(string(name)), q)
	}
	return p.list
}

// PersistentVolume checks a new volume.
func PersistentVolume(v *corev1.PersistentVolume) field.ErrorList {
	p := &problems{}
	at := field.NewPath("spec")
	p.volumeModes(at.Child("accessModes"), v.Spec.AccessModes)
	p.capacity(at.Child("capacity"), v.Spec.Capacity)
	if r := v.Spec.PersistentVolumeReclaimPolicy; r != "" {
		oneOf(p, at.Child("persistentVolumeReclaimPolicy"), r,
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)
	}
	p.className(at.Child("storageClassName"), &v.Spec.StorageClassName)
	if v.Spec.VolumeMode != nil {
		oneOf(p, at.Child("volumeMode"), *v.Spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	}
	if a := v.Spec.NodeAffinity; a != nil && a.Required == nil {
		p.required(at.Child("nodeAffinity", "required"), "must specify required node constraints")
	} else if a != nil {
		p.nodeSelector(at.Child("nodeAffinity", "required"), a.Required)
	}
	p.persistentSource(at, &v.Spec)
	return p.list
}

func (p *problems) volumeModes(at path, modes []corev1.PersistentVolumeAccessMode) {
	if len(modes) == 0 {
		p.required(at, "")
	}
	p.accessModes(at, modes)
}

func (p *problems) capacity(at path, list corev1.ResourceList) {
	if len(list) == 0 {
		p.required(at, "")
	}
	if _, ok := list[corev1.ResourceStorage]; !ok || len(list) > 1 {
		p.add(field.NotSupported(at, list, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for name, q := range list {
		p.positiveQuantity(at.Key(string(name)), q)
	}
}

func (p *problems) persistentSource(at path, spec *corev1.PersistentVolumeSpec) {
	var names []string
	value := reflect.ValueOf(&spec.PersistentVolumeSource).Elem()
	for i := range value.NumField() {
		if !value.Field(i).IsNil() {
			tag, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, tag)
		}
	}
	if len(names) == 0 {
		p.required(at, "must specify a volume type")
		return
	}
	for _, name := range names[1:] {
		p.forbidden(at.Child(name), "may not specify more than 1 volume type")
	}
	switch {
	case spec.HostPath != nil:
		p.hostPath(at.Child("hostPath"), spec.HostPath)
		if strings.Trim(spec.HostPath.Path, "/") == "" && spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
			p.forbidden(at.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'")
		}
	case spec.Local != nil:
		if p.present(at.Child("local", "path"), spec.Local.Path) {
			p.noBacksteps(at.Child("local", "path"), spec.Local.Path)
		}
		if spec.NodeAffinity == nil || spec.NodeAffinity.Required == nil {
			p.required(at.Child("nodeAffinity"), "Local volume requires node affinity")
		}
	case spec.NFS != nil:
		p.nfs(at.Child("nfs"), spec.NFS)
	case spec.CSI != nil:
		p.csiDriver(at.Child("csi", "driver"), spec.CSI.Driver)
		p.present(at.Child("csi", "volumeHandle"), spec.CSI.VolumeHandle)
	}
}

// PersistentVolumeUpdate checks a volume that replaces old. The place of its data cannot change.
func PersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	list := PersistentVolume(v)
	p := &problems{list: list}
	if !apiequality.Semantic.DeepEqual(v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource) {
		p.forbidden(field.NewPath("spec", "persistentvolumesource"), "spec.persistentvolumesource is immutable after creation\n%v",
			diff.Diff(old.Spec.PersistentVolumeSource, v.Spec.PersistentVolumeSource))
	}
	if !apiequality.Semantic.DeepEqual(v.Spec.VolumeMode, old.Spec.VolumeMode) {
		p.invalid(field.NewPath("volumeMode"), v.Spec.VolumeMode, isImmutable)
	}
	return p.list
}
