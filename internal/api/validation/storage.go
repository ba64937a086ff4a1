package validation

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
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
		p.dataSources(at, spec)
	}
}

// dataSources checks a claim that has dataSourceRef: dataSource, if it has that, too, says the same.
func (p *problems) dataSources(at path, spec *corev1.PersistentVolumeClaimSpec) {
	d, ref := spec.DataSource, spec.DataSourceRef
	elsewhere := ref.Namespace != nil && *ref.Namespace != ""
	if elsewhere {
		matches(p, at.Child("dataSourceRef", "namespace"), *ref.Namespace, utilvalidation.IsDNS1123Label(*ref.Namespace))
	}
	switch {
	case d == nil:
	case elsewhere:
		p.invalid(at, at.Child("dataSource").String(), "may not be specified when dataSourceRef.namespace is specified")
	case d.Kind != ref.Kind || d.Name != ref.Name || !reflect.DeepEqual(d.APIGroup, ref.APIGroup):
		p.invalid(at, at.Child("dataSource").String(), "must match dataSourceRef")
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
	if !apiequality.Semantic.DeepEqual(c.Spec.VolumeMode, old.Spec.VolumeMode) {
		p.invalid(field.NewPath("volumeMode"), c.Spec.VolumeMode, isImmutable)
	}
	p.attributesClassStays(at.Child("volumeAttributesClassName"), c, old)
	return p.list
}

// attributesClassStays checks that a claim whose volume has got a class of attributes keeps some.
func (p *problems) attributesClassStays(at path, c, old *corev1.PersistentVolumeClaim) {
	class := c.Spec.VolumeAttributesClassName
	switch {
	case old.Status.CurrentVolumeAttributesClassName == nil, apiequality.Semantic.DeepEqual(class, old.Spec.VolumeAttributesClassName):
	case class == nil:
		p.forbidden(at, "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil")
	case *class == "":
		p.forbidden(at, "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil")
	}
}

var claimResizeStatuses = []corev1.ClaimResourceStatus{
	corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
	corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress,
	corev1.PersistentVolumeClaimNodeResizeInfeasible,
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
	for name, status := range c.Status.AllocatedResourceStatuses {
		p.claimResource(at.Child("allocatedResourceStatuses"), name)
		oneOf(p, at.Child("allocatedResourceStatuses"), status, claimResizeStatuses...)
	}
	for name, q := range c.Status.AllocatedResources {
		p.claimResource(at.Child("allocatedResources"), name)
		p.quantityNotNegative(at.Child("allocatedResources").Key(string(name)), q)
	}
	if h := c.Status.HealthStatus; h != nil {
		p.volumeConditions(at.Child("healthStatus", "healthConditions"), h.HealthConditions)
	}
	return p.list
}

// claimResource checks the name of a resource that a claim has: storage, or one of somebody else's.
func (p *problems) claimResource(at path, name corev1.ResourceName) {
	if wrong := utilvalidation.IsQualifiedName(string(name)); len(wrong) > 0 {
		matches(p, at, string(name), wrong)
	} else if native(name) {
		oneOf(p, at, name, corev1.ResourceStorage)
	}
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
	p.persistentSource(at, v.Name, &v.Spec)
	if class := v.Spec.VolumeAttributesClassName; class != nil {
		p.volumeAttributesClass(at, *class, &v.Spec)
	}
	p.mountOptionsAnnotation(v)
	return p.list
}

func (p *problems) volumeAttributesClass(at path, class string, spec *corev1.PersistentVolumeSpec) {
	if class == "" {
		p.required(at.Child("volumeAttributesClassName"), "an empty string is disallowed")
	} else {
		p.subdomain(at.Child("volumeAttributesClassName"), class)
	}
	if spec.CSI == nil {
		p.required(at.Child("csi"), "has to be specified when using volumeAttributesClassName")
	}
}

// mountOptionsAnnotation checks the annotation that was there before spec.mountOptions. Volumes that came later
// never had it.
func (p *problems) mountOptionsAnnotation(v *corev1.PersistentVolume) {
	if _, ok := v.Annotations[corev1.MountOptionAnnotation]; !ok {
		return
	}
	s := &v.Spec
	if s.HostPath != nil || s.Local != nil || s.CSI != nil || s.FC != nil || s.FlexVolume != nil || s.Flocker != nil ||
		s.PortworxVolume != nil || s.ScaleIO != nil || s.StorageOS != nil {
		p.forbidden(field.NewPath("metadata", "annotations", corev1.MountOptionAnnotation),
			"may not specify mount options for this volume type")
	}
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

func (p *problems) persistentSource(at path, name string, spec *corev1.PersistentVolumeSpec) {
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
	for _, kind := range names[1:] {
		p.forbidden(at.Child(kind), "may not specify more than 1 volume type")
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
		p.secret(at.Child("csi", "controllerPublishSecretRef"), spec.CSI.ControllerPublishSecretRef)
		p.secret(at.Child("csi", "controllerExpandSecretRef"), spec.CSI.ControllerExpandSecretRef)
		p.secret(at.Child("csi", "nodePublishSecretRef"), spec.CSI.NodePublishSecretRef)
		p.secret(at.Child("csi", "nodeExpandSecretRef"), spec.CSI.NodeExpandSecretRef)
	case spec.FC != nil:
		p.fibreChannel(at.Child("fc"), spec.FC)
	case spec.ISCSI != nil:
		p.persistentISCSI(at.Child("iscsi"), name, spec.ISCSI)
	}
}

// secret checks a reference to a secret in any namespace.
func (p *problems) secret(at path, ref *corev1.SecretReference) {
	if ref == nil {
		return
	}
	if p.present(at.Child("name"), ref.Name) {
		p.subdomain(at.Child("name"), ref.Name)
	}
	if p.present(at.Child("namespace"), ref.Namespace) {
		p.label(at.Child("namespace"), ref.Namespace)
	}
}

// PersistentVolumeUpdate checks a volume that replaces old. The place of its data cannot change.
func PersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	list := PersistentVolume(v)
	p := &problems{list: list}
	is, was := v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource
	if was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil && is.CSI != nil && is.CSI.ControllerExpandSecretRef != nil {
		is = *is.DeepCopy() // may be given later
		is.CSI.ControllerExpandSecretRef = nil
	}
	if !apiequality.Semantic.DeepEqual(is, was) {
		p.forbidden(field.NewPath("spec", "persistentvolumesource"), "spec.persistentvolumesource is immutable after creation\n%v",
			diff.Diff(was, is))
	}
	if !apiequality.Semantic.DeepEqual(v.Spec.VolumeMode, old.Spec.VolumeMode) {
		p.invalid(field.NewPath("volumeMode"), v.Spec.VolumeMode, isImmutable)
	}
	if old.Spec.NodeAffinity != nil && !sameNodes(v.Spec.NodeAffinity, old.Spec.NodeAffinity) {
		p.invalid(field.NewPath("nodeAffinity"), v.Spec.NodeAffinity, isImmutable+", except for updating from beta label to GA")
	}
	if old.Spec.VolumeAttributesClassName != nil && v.Spec.VolumeAttributesClassName == nil {
		p.forbidden(field.NewPath("spec", "volumeAttributesClassName"), "update from non-nil value to nil is forbidden")
	}
	return p.list
}

// successors maps labels of nodes that are deprecated to those that took their places.
var successors = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
	"beta.kubernetes.io/arch":           corev1.LabelArchStable,
	"beta.kubernetes.io/os":             corev1.LabelOSStable,
}

// sameNodes reports whether a volume's affinity is as it was, but for labels whose successors it has now.
func sameNodes(is, was *corev1.VolumeNodeAffinity) bool {
	if is != nil && is.Required != nil && was.Required != nil {
		was = was.DeepCopy()
		for i := range min(len(is.Required.NodeSelectorTerms), len(was.Required.NodeSelectorTerms)) {
			now, old := is.Required.NodeSelectorTerms[i].MatchExpressions, was.Required.NodeSelectorTerms[i].MatchExpressions
			for j := range min(len(now), len(old)) {
				if successors[old[j].Key] == now[j].Key {
					old[j].Key = now[j].Key
				}
			}
		}
	}
	return apiequality.Semantic.DeepEqual(is, was)
}

// PersistentVolumeStatus checks a volume's status.
func PersistentVolumeStatus(v, _ *corev1.PersistentVolume) field.ErrorList {
	p := &problems{}
	if v.ResourceVersion == "" {
		p.required(field.NewPath("resourceVersion"), "")
	}
	return p.list
}
