package resources

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/gated"
	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/printers"
	"wherry.dev/internal/apiserver/registry/warnings"
)

func storageClasses() registry.Row[*storagev1.StorageClass] {
	return registry.Row[*storagev1.StorageClass]{
		Resource:   gvr(storagev1.SchemeGroupVersion, "storageclasses"),
		Kind:       "StorageClass",
		Singular:   "storageclass",
		ShortNames: []string{"sc"},
		New:        func() *storagev1.StorageClass { return &storagev1.StorageClass{} },
		NewList:    list[storagev1.StorageClassList](),
		Table:      printers.StorageClasses,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*storagev1.StorageClass]{
			Validate:       onCreate(validation.StorageClass),
			ValidateUpdate: onUpdate(validation.StorageClassUpdate),
			Warn:           warnings.StorageClass,
		},
		ReturnDeleted: true,
	}
}

func volumeAttachments() registry.Row[*storagev1.VolumeAttachment] {
	return registry.Row[*storagev1.VolumeAttachment]{
		Resource:  gvr(storagev1.SchemeGroupVersion, "volumeattachments"),
		Kind:      "VolumeAttachment",
		Singular:  "volumeattachment",
		New:       func() *storagev1.VolumeAttachment { return &storagev1.VolumeAttachment{} },
		NewList:   list[storagev1.VolumeAttachmentList](),
		Table:     printers.VolumeAttachments,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*storagev1.VolumeAttachment]{
			Create:                func(_ context.Context, a *storagev1.VolumeAttachment) { a.Status = storagev1.VolumeAttachmentStatus{} },
			Update:                func(_ context.Context, a, old *storagev1.VolumeAttachment) { a.Status = old.Status },
			Validate:              onCreate(validation.VolumeAttachment),
			ValidateUpdate:        onUpdate(validation.VolumeAttachmentUpdate),
			Reset:                 []string{"status"},
			NoUnconditionalUpdate: true,
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[*storagev1.VolumeAttachment]{
			Update: func(_ context.Context, a, old *storagev1.VolumeAttachment) {
				a.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(&a.ObjectMeta, &old.ObjectMeta)
			},
			ValidateUpdate:        onUpdate(validation.VolumeAttachmentUpdate),
			Reset:                 []string{"metadata", "spec"},
			NoUnconditionalUpdate: true,
		},
	}
}

// csiNodes has a status where drivers' health is on.
func csiNodes(f gated.Features) registry.Row[*storagev1.CSINode] {
	return registry.Row[*storagev1.CSINode]{
		Resource:  gvr(storagev1.SchemeGroupVersion, "csinodes"),
		Kind:      "CSINode",
		Singular:  "csinode",
		New:       func() *storagev1.CSINode { return &storagev1.CSINode{} },
		NewList:   list[storagev1.CSINodeList](),
		Table:     printers.CSINodes,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*storagev1.CSINode]{
			Create:                func(_ context.Context, n *storagev1.CSINode) { n.Status = storagev1.CSINodeStatus{} },
			Update:                func(_ context.Context, n, old *storagev1.CSINode) { n.Status = old.Status },
			Validate:              onCreate(validation.CSINode),
			ValidateUpdate:        onUpdate(validation.CSINodeUpdate),
			Reset:                 []string{"status"},
			NoUnconditionalUpdate: true,
		},
		ReturnDeleted: true,
		Status: &registry.Strategy[*storagev1.CSINode]{
			Drop: f.CSINodeStatus,
			Update: func(_ context.Context, n, old *storagev1.CSINode) {
				n.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(&n.ObjectMeta, &old.ObjectMeta)
			},
			ValidateUpdate:        onUpdate(validation.CSINodeStatus),
			Reset:                 []string{"metadata", "spec"},
			NoUnconditionalUpdate: true,
		},
	}
}

func csiDrivers() registry.Row[*storagev1.CSIDriver] {
	return registry.Row[*storagev1.CSIDriver]{
		Resource:  gvr(storagev1.SchemeGroupVersion, "csidrivers"),
		Kind:      "CSIDriver",
		Singular:  "csidriver",
		New:       func() *storagev1.CSIDriver { return &storagev1.CSIDriver{} },
		NewList:   list[storagev1.CSIDriverList](),
		Table:     printers.CSIDrivers,
		CheckName: apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*storagev1.CSIDriver]{
			Update: func(_ context.Context, d, old *storagev1.CSIDriver) {
				bump(d, old, !apiequality.Semantic.DeepEqual(d.Spec, old.Spec))
			},
			Validate:              onCreate(validation.CSIDriver),
			ValidateUpdate:        onUpdate(validation.CSIDriverUpdate),
			WarnNew:               warnings.CSIDriver,
			WarnUpdate:            warnings.ChangedCSIDriver,
			NoUnconditionalUpdate: true,
		},
		ReturnDeleted: true,
	}
}

func csiStorageCapacities() registry.Row[*storagev1.CSIStorageCapacity] {
	return registry.Row[*storagev1.CSIStorageCapacity]{
		Resource:   gvr(storagev1.SchemeGroupVersion, "csistoragecapacities"),
		Kind:       "CSIStorageCapacity",
		Singular:   "csistoragecapacity",
		Namespaced: true,
		New:        func() *storagev1.CSIStorageCapacity { return &storagev1.CSIStorageCapacity{} },
		NewList:    list[storagev1.CSIStorageCapacityList](),
		Table:      printers.CSIStorageCapacities,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*storagev1.CSIStorageCapacity]{
			Validate:              onCreate(validation.CSIStorageCapacity),
			ValidateUpdate:        onUpdate(validation.CSIStorageCapacityUpdate),
			Warn:                  warnings.StorageCapacity,
			NoUnconditionalUpdate: true,
		},
	}
}

func volumeAttributesClasses() registry.Row[*storagev1.VolumeAttributesClass] {
	return registry.Row[*storagev1.VolumeAttributesClass]{
		Resource:   gvr(storagev1.SchemeGroupVersion, "volumeattributesclasses"),
		Kind:       "VolumeAttributesClass",
		Singular:   "volumeattributesclass",
		ShortNames: []string{"vac"},
		New:        func() *storagev1.VolumeAttributesClass { return &storagev1.VolumeAttributesClass{} },
		NewList:    list[storagev1.VolumeAttributesClassList](),
		Table:      printers.VolumeAttributesClasses,
		CheckName:  apivalidation.NameIsDNSSubdomain,
		Strategy: registry.Strategy[*storagev1.VolumeAttributesClass]{
			Validate:       onCreate(validation.VolumeAttributesClass),
			ValidateUpdate: onUpdate(validation.VolumeAttributesClassUpdate),
		},
		ReturnDeleted: true,
	}
}
