package validation

import (
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// unchanged is like immutable, for values that cannot be compared with ==.
func (p *problems) unchanged(at path, value, old any) {
	if !apiequality.Semantic.DeepEqual(value, old) {
		p.add(field.Invalid(at, value, isImmutable).WithOrigin("immutable"))
	}
}

const (
	maxClassParameters    = 512
	maxClassParameterSize = 256 << 10 // of all parameters together, in bytes
)

// StorageClass checks a storage class.
func StorageClass(c *storagev1.StorageClass) field.ErrorList {
	p := &problems{}
	if at := field.NewPath("provisioner"); p.present(at, c.Provisioner) {
		matches(p, at, strings.ToLower(c.Provisioner), utilvalidation.IsQualifiedName(strings.ToLower(c.Provisioner)))
	}
	p.classParameters(field.NewPath("parameters"), c.Parameters)
	if r := c.ReclaimPolicy; r != nil && *r != "" {
		oneOf(p, field.NewPath("reclaimPolicy"), *r, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)
	}
	if at := field.NewPath("volumeBindingMode"); c.VolumeBindingMode == nil {
		p.required(at, "")
	} else {
		oneOf(p, at, *c.VolumeBindingMode, storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)
	}
	p.topologies(field.NewPath("allowedTopologies"), c.AllowedTopologies)
	return p.list
}

// StorageClassUpdate checks a storage class that replaces old. The fields from which volumes are
// created cannot change.
func StorageClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
	p := &problems{list: StorageClass(c)}
	p.unchanged(field.NewPath("parameters"), c.Parameters, old.Parameters)
	p.unchanged(field.NewPath("provisioner"), c.Provisioner, old.Provisioner)
	p.unchanged(field.NewPath("reclaimPolicy"), c.ReclaimPolicy, old.ReclaimPolicy)
	p.unchanged(field.NewPath("volumeBindingMode"), c.VolumeBindingMode, old.VolumeBindingMode)
	return p.list
}

func (p *problems) classParameters(at path, parameters map[string]string) {
	if len(parameters) > maxClassParameters {
		p.add(field.TooLong(at, "", maxClassParameters))
		return
	}
	if _, ok := parameters[""]; ok {
		p.invalid(at, "", "field can not be empty.")
	}
	if size(parameters) > maxClassParameterSize {
		p.add(field.TooLong(at, "", maxClassParameterSize))
	}
}

func size(m map[string]string) int {
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}

// topologies checks terms, which must all differ from each other.
func (p *problems) topologies(at path, terms []corev1.TopologySelectorTerm) {
	var seen []map[string][]string
	for i, term := range terms {
		at := at.Index(i)
		keys := p.topology(at.Child("matchLabelExpressions"), term.MatchLabelExpressions)
		if slices.ContainsFunc(seen, func(s map[string][]string) bool { return maps.EqualFunc(s, keys, slices.Equal) }) {
			p.add(field.Duplicate(at.Child("matchLabelExpressions"), ""))
		}
		seen = append(seen, keys)
	}
}

// topology checks a term, and returns its sorted values by key.
func (p *problems) topology(at path, expressions []corev1.TopologySelectorLabelRequirement) map[string][]string {
	keys := map[string][]string{}
	for i, e := range expressions {
		at := at.Index(i)
		if len(e.Values) == 0 {
			p.required(at.Child("values"), "")
		}
		for j, v := range e.Values {
			if slices.Contains(e.Values[:j], v) {
				p.add(field.Duplicate(at.Child("values").Index(j), v))
			}
		}
		p.addAll(metavalidation.ValidateLabelName(e.Key, at.Child("key")))
		if _, ok := keys[e.Key]; ok {
			p.add(field.Duplicate(at.Child("key"), e.Key))
		}
		keys[e.Key] = slices.Compact(slices.Sorted(slices.Values(e.Values)))
	}
	return keys
}

const (
	maxAttachmentMetadata = 256 << 10 // in bytes
	maxVolumeErrorMessage = 1024
)

// VolumeAttachment checks a volume attachment and its status.
func VolumeAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	p := &problems{}
	spec, status := field.NewPath("spec"), field.NewPath("status")
	p.csiDriver(spec.Child("attacher"), a.Spec.Attacher)
	p.attachmentSource(spec.Child("source"), &a.Spec.Source)
	p.subdomain(spec.Child("nodeName"), a.Spec.NodeName)
	if size(a.Status.AttachmentMetadata) > maxAttachmentMetadata {
		p.add(field.TooLong(status.Child("attachmentMetadata"), "", maxAttachmentMetadata))
	}
	p.volumeError(status.Child("attachError"), a.Status.AttachError)
	p.volumeError(status.Child("detachError"), a.Status.DetachError)
	return p.list
}

// VolumeAttachmentUpdate checks a volume attachment that replaces old.
func VolumeAttachmentUpdate(a, old *storagev1.VolumeAttachment) field.ErrorList {
	p := &problems{list: VolumeAttachment(a)}
	p.unchanged(field.NewPath("spec"), a.Spec, old.Spec)
	return p.list
}

func (p *problems) attachmentSource(at path, s *storagev1.VolumeAttachmentSource) {
	const exactlyOne = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		p.required(at, exactlyOne)
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		p.forbidden(at, exactlyOne)
	case s.InlineVolumeSpec != nil:
		p.inlineVolume(at.Child("inlineVolumeSpec"), s.InlineVolumeSpec)
	case *s.PersistentVolumeName == "":
		p.required(at.Child("persistentVolumeName"), "must specify non empty persistentVolumeName")
	}
	if s.PersistentVolumeName != nil {
		p.subdomain(at.Child("persistentVolumeName"), *s.PersistentVolumeName)
	}
}

// inlineVolume checks a CSI volume that has no PersistentVolume: a pod's own, migrated.
func (p *problems) inlineVolume(at path, v *corev1.PersistentVolumeSpec) {
	const inline = "in the context of inline volumes"
	refuse := func(name string, set bool) {
		if set {
			p.forbidden(at.Child(name), "may not be specified %s", inline)
		}
	}
	refuse("claimRef", v.ClaimRef != nil)
	refuse("capacity", len(v.Capacity) != 0)
	if v.CSI == nil {
		p.required(at.Child("csi"), "has to be specified "+inline)
	}
	p.volumeModes(at.Child("accessModes"), v.AccessModes)
	if r := v.PersistentVolumeReclaimPolicy; r != "" && r != corev1.PersistentVolumeReclaimRetain {
		p.forbidden(at.Child("persistentVolumeReclaimPolicy"), "may only be %s %s", corev1.PersistentVolumeReclaimRetain, inline)
	}
	refuse("nodeAffinity", v.NodeAffinity != nil)
	p.persistentSource(at, "", v)
	refuse("storageClassName", v.StorageClassName != "")
	if m := v.VolumeMode; m != nil && *m != corev1.PersistentVolumeFilesystem {
		p.forbidden(at.Child("volumeMode"), "may not specify volumeMode other than %s %s", corev1.PersistentVolumeFilesystem, inline)
	}
}

func (p *problems) volumeError(at path, e *storagev1.VolumeError) {
	if e == nil {
		return
	}
	if len(e.Message) > maxVolumeErrorMessage {
		p.add(field.TooLong(at.Child("message"), "", maxVolumeErrorMessage))
	}
	if e.ErrorCode != nil && *e.ErrorCode < 0 {
		p.add(field.Invalid(at.Child("errorCode"), *e.ErrorCode, utilvalidation.InclusiveRangeError(0, math.MaxInt32)))
	}
}

const maxCSINodeID = 256

// CSINode checks the drivers of a node.
func CSINode(n *storagev1.CSINode) field.ErrorList {
	p := &problems{}
	names := map[string]bool{}
	for i := range n.Spec.Drivers {
		d, at := &n.Spec.Drivers[i], field.NewPath("spec", "drivers").Index(i)
		p.nodeDriver(at, d)
		if names[d.Name] {
			p.add(field.Duplicate(at.Child("name"), d.Name))
		}
		names[d.Name] = true
		p.topologyKeys(at, d.TopologyKeys)
	}
	return p.list
}

func (p *problems) nodeDriver(at path, d *storagev1.CSINodeDriver) {
	p.csiDriver(at.Child("name"), d.Name)
	p.present(at.Child("nodeID"), d.NodeID)
	if len(d.NodeID) > maxCSINodeID {
		p.invalid(at.Child("nodeID"), d.NodeID, "must be %d characters or less", maxCSINodeID)
	}
	if a := d.Allocatable; a != nil && a.Count != nil {
		p.notNegative(at.Child("allocatable", "count"), int64(*a.Count))
	}
}

func (p *problems) topologyKeys(at path, keys []string) {
	for i, key := range keys {
		p.present(at, key)
		if slices.Contains(keys[:i], key) {
			p.add(field.Duplicate(at, key))
		}
		p.qualified(at, key)
	}
}

// CSINodeUpdate checks a CSINode that replaces old. A driver that stays may change only the number
// of its volumes.
func CSINodeUpdate(n, old *storagev1.CSINode) field.ErrorList {
	p := &problems{list: CSINode(n)}
	for i := range old.Spec.Drivers {
		for j := range n.Spec.Drivers {
			if old.Spec.Drivers[i].Name == n.Spec.Drivers[j].Name {
				was, is := old.Spec.Drivers[i].DeepCopy(), n.Spec.Drivers[j].DeepCopy()
				was.Allocatable, is.Allocatable = nil, nil
				p.unchanged(field.NewPath("spec", "drivers"), is, was)
			}
		}
	}
	return p.list
}

const minAllocatablePeriod = 10 // seconds

// CSIDriver checks the settings of a driver.
func CSIDriver(d *storagev1.CSIDriver) field.ErrorList {
	p := &problems{}
	at, spec := field.NewPath("spec"), &d.Spec
	need := func(name string, b *bool) {
		if b == nil {
			p.required(at.Child(name), "")
		}
	}
	need("attachedRequired", spec.AttachRequired)
	need("podInfoOnMount", spec.PodInfoOnMount)
	need("storageCapacity", spec.StorageCapacity)
	if g := spec.FSGroupPolicy; g != nil {
		oneOf(p, at.Child("fsGroupPolicy"), *g,
			storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy)
	}
	p.tokenRequests(at.Child("tokenRequests"), spec.TokenRequests)
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	for _, m := range spec.VolumeLifecycleModes {
		if !slices.Contains(modes, m) {
			p.add(field.NotSupported(at.Child("volumeLifecycleModes"), m, modes))
		}
	}
	need("seLinuxMount", spec.SELinuxMount)
	need("preventPodSchedulingIfMissing", spec.PreventPodSchedulingIfMissing)
	if s := spec.NodeAllocatableUpdatePeriodSeconds; s != nil && *s < minAllocatablePeriod {
		p.invalid(at.Child("nodeAllocatableUpdatePeriodSeconds"), *s, "must be greater than or equal to %d seconds", minAllocatablePeriod)
	}
	if s := spec.ServiceAccountTokenInSecrets; s != nil && len(spec.TokenRequests) == 0 {
		p.invalid(at.Child("serviceAccountTokenInSecrets"), s, "serviceAccountTokenInSecrets is set but no tokenRequests are specified")
	}
	return p.list
}

func (p *problems) tokenRequests(at path, requests []storagev1.TokenRequest) {
	audiences := map[string]bool{}
	for i, r := range requests {
		at := at.Index(i)
		if audiences[r.Audience] {
			p.add(field.Duplicate(at.Child("audience"), r.Audience))
			continue
		}
		audiences[r.Audience] = true
		p.tokenLife(at.Child("expirationSeconds"), r.ExpirationSeconds)
	}
}

// CSIDriverUpdate checks a driver that replaces old. What its volumes rely on cannot change.
func CSIDriverUpdate(d, old *storagev1.CSIDriver) field.ErrorList {
	p := &problems{list: CSIDriver(d)}
	p.unchanged(field.NewPath("spec", "attachedRequired"), d.Spec.AttachRequired, old.Spec.AttachRequired)
	p.unchanged(field.NewPath("spec", "volumeLifecycleModes"), d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes)
	return p.list
}
