package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"wherry.dev/internal/api/defaults"
)

func TestStorageClasses(t *testing.T) {
	class := func(change func(*storagev1.StorageClass)) *storagev1.StorageClass {
		c := &storagev1.StorageClass{Provisioner: "example.com/Fast"}
		defaults.StorageClass(c)
		change(c)
		return c
	}
	check(t, StorageClass(class(func(*storagev1.StorageClass) {})))
	check(t, StorageClass(class(func(c *storagev1.StorageClass) { c.Provisioner = "" })), "provisioner: Required value")
	check(t, StorageClass(class(func(c *storagev1.StorageClass) {
		c.Provisioner = "a/b/c"
		c.Parameters = map[string]string{"": "x"}
		c.ReclaimPolicy, c.VolumeBindingMode = new(corev1.PersistentVolumeReclaimRecycle), new(storagev1.VolumeBindingMode("Later"))
	})),
		`provisioner: Invalid value: "a/b/c": a valid label key must consist of`,
		`parameters: Invalid value: "": field can not be empty.`,
		`reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"`,
		`volumeBindingMode: Unsupported value: "Later": supported values: "Immediate", "WaitForFirstConsumer"`)
	check(t, StorageClass(class(func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"k": strings.Repeat("x", 256<<10)}
	})), "parameters: Too long: may not be more than 262144 bytes")
	zone := func(values ...string) corev1.TopologySelectorTerm {
		return corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: values}}}
	}
	check(t, StorageClass(class(func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{zone("a", "b"), zone("b", "a"), zone(), zone("c", "c")}
	})),
		`allowedTopologies[1].matchLabelExpressions: Duplicate value: ""`,
		`allowedTopologies[2].matchLabelExpressions[0].values: Required value`,
		`allowedTopologies[3].matchLabelExpressions[0].values[1]: Duplicate value: "c"`)

	old := class(func(*storagev1.StorageClass) {})
	check(t, StorageClassUpdate(class(func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = new(true) }), old))
	check(t, StorageClassUpdate(class(func(c *storagev1.StorageClass) {
		c.Provisioner, c.Parameters = "b", map[string]string{"a": "b"}
		c.ReclaimPolicy, c.VolumeBindingMode = new(corev1.PersistentVolumeReclaimRetain), new(storagev1.VolumeBindingWaitForFirstConsumer)
	}), old),
		`parameters: Invalid value: {"a":"b"}: field is immutable`,
		`provisioner: Invalid value: "b": field is immutable`,
		`reclaimPolicy: Invalid value: "Retain": field is immutable`,
		`volumeBindingMode: Invalid value: "WaitForFirstConsumer": field is immutable`)
}

func TestVolumeAttachments(t *testing.T) {
	attachment := func(change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
		a := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "csi.example.com", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")},
		}}
		change(a)
		return a
	}
	const exactlyOne = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	check(t, VolumeAttachment(attachment(func(*storagev1.VolumeAttachment) {})))
	check(t, VolumeAttachment(attachment(func(a *storagev1.VolumeAttachment) { a.Spec = storagev1.VolumeAttachmentSpec{} })),
		"spec.attacher: Required value", "spec.source: Required value: "+exactlyOne, `spec.nodeName: Invalid value: ""`)
	check(t, VolumeAttachment(attachment(func(a *storagev1.VolumeAttachment) {
		a.Spec.Attacher = strings.Repeat("a", 64)
		a.Spec.Source.InlineVolumeSpec = &corev1.PersistentVolumeSpec{}
	})), "spec.attacher: Too long: may not be more than 63 bytes", "spec.source: Forbidden: "+exactlyOne)
	check(t, VolumeAttachment(attachment(func(a *storagev1.VolumeAttachment) {
		a.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{
			StorageClassName: "fast", AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/p"}},
		}}
	})),
		"spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes",
		"spec.source.inlineVolumeSpec.storageClassName: Forbidden: may not be specified in the context of inline volumes")
	check(t, VolumeAttachment(attachment(func(a *storagev1.VolumeAttachment) {
		a.Status.AttachError = &storagev1.VolumeError{ErrorCode: new(int32(-1)), Message: strings.Repeat("x", 1025)}
	})),
		"status.attachError.message: Too long",
		"status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive")
	check(t, VolumeAttachmentUpdate(attachment(func(a *storagev1.VolumeAttachment) { a.Spec.NodeName = "n2" }), attachment(func(*storagev1.VolumeAttachment) {})),
		"spec: Invalid value: ")
}

func TestCSINodes(t *testing.T) {
	node := func(drivers ...storagev1.CSINodeDriver) *storagev1.CSINode {
		return &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: drivers}}
	}
	fine := storagev1.CSINodeDriver{Name: "csi.example.com", NodeID: "n", TopologyKeys: []string{"example.com/zone"}}
	check(t, CSINode(node(fine)))
	check(t, CSINode(node(fine, fine)), `spec.drivers[1].name: Duplicate value: "csi.example.com"`)
	check(t, CSINode(node(storagev1.CSINodeDriver{
		NodeID: strings.Repeat("n", 257), TopologyKeys: []string{"k", "k"}, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(-1))},
	})),
		"spec.drivers[0].name: Required value", "spec.drivers[0].nodeID: Invalid value", `spec.drivers[0]: Duplicate value: "k"`,
		"spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0")
	more, other := fine, fine
	more.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(3))}
	other.NodeID = "m"
	check(t, CSINodeUpdate(node(more), node(fine)))
	check(t, CSINodeUpdate(node(), node(fine)))
	check(t, CSINodeUpdate(node(other), node(fine)), "spec.drivers: Invalid value: ")
}

func TestCSIDrivers(t *testing.T) {
	driver := func(change func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
		d := &storagev1.CSIDriver{}
		defaults.CSIDriver(d)
		change(&d.Spec)
		return d
	}
	check(t, CSIDriver(driver(func(*storagev1.CSIDriverSpec) {})))
	check(t, CSIDriver(&storagev1.CSIDriver{}),
		"spec.attachedRequired: Required value", "spec.podInfoOnMount: Required value", "spec.storageCapacity: Required value", "spec.seLinuxMount: Required value",
		"spec.preventPodSchedulingIfMissing: Required value")
	check(t, CSIDriver(driver(func(s *storagev1.CSIDriverSpec) {
		s.FSGroupPolicy = new(storagev1.FSGroupPolicy("Some"))
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Brief"}
		s.NodeAllocatableUpdatePeriodSeconds = new(int64(9))
		s.ServiceAccountTokenInSecrets = new(true)
	})),
		`spec.fsGroupPolicy: Unsupported value: "Some": supported values: "File", "None", "ReadWriteOnceWithFSType"`,
		`spec.volumeLifecycleModes: Unsupported value: "Brief": supported values: "Persistent", "Ephemeral"`,
		`spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds`,
		`spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no tokenRequests are specified`)
	check(t, CSIDriver(driver(func(s *storagev1.CSIDriverSpec) {
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "a", ExpirationSeconds: new(int64(599))}, {Audience: "a"}, {ExpirationSeconds: new(int64(1<<32 + 1))}}
	})),
		"spec.tokenRequests[0].expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
		`spec.tokenRequests[1].audience: Duplicate value: "a"`,
		"spec.tokenRequests[2].expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds")
	changed := driver(func(s *storagev1.CSIDriverSpec) {
		s.AttachRequired = new(false)
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		s.RequiresRepublish = new(true)
	})
	check(t, CSIDriverUpdate(changed, driver(func(*storagev1.CSIDriverSpec) {})),
		"spec.attachedRequired: Invalid value: false: field is immutable",
		`spec.volumeLifecycleModes: Invalid value: ["Ephemeral"]: field is immutable`)
}
