package validation

import (
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// CSIStorageCapacity checks how much storage of a class some nodes can reach.
func CSIStorageCapacity(c *storagev1.CSIStorageCapacity) field.ErrorList {
	return storageCapacity(c, metavalidation.LabelSelectorValidationOptions{})
}

// CSIStorageCapacityUpdate checks a capacity that replaces old. What was asked for stays as it is.
func CSIStorageCapacityUpdate(c, old *storagev1.CSIStorageCapacity) field.ErrorList {
	at, o := field.NewPath("nodeTopology"), metavalidation.LabelSelectorValidationOptions{}
	o.AllowInvalidLabelValueInSelector = len(metavalidation.ValidateLabelSelector(old.NodeTopology, o, at)) > 0
	p := &problems{list: storageCapacity(c, o)}
	p.unchanged(at, c.NodeTopology, old.NodeTopology)
	immutable(p, field.NewPath("storageClassName"), c.StorageClassName, old.StorageClassName)
	return p.list
}

func storageCapacity(c *storagev1.CSIStorageCapacity, o metavalidation.LabelSelectorValidationOptions) field.ErrorList {
	p := &problems{list: metavalidation.ValidateLabelSelector(c.NodeTopology, o, field.NewPath("nodeTopology"))}
	p.subdomain(field.NewPath("storageClassName"), c.StorageClassName)
	if c.Capacity != nil {
		p.quantityNotNegative(field.NewPath("capacity"), *c.Capacity)
	}
	return p.list
}

// VolumeAttributesClass checks a class of volumes' attributes.
func VolumeAttributesClass(c *storagev1.VolumeAttributesClass) field.ErrorList {
	p := &problems{}
	if at := field.NewPath("driverName"); p.present(at, c.DriverName) {
		matches(p, at, strings.ToLower(c.DriverName), utilvalidation.IsQualifiedName(strings.ToLower(c.DriverName)))
	}
	at := field.NewPath("parameters")
	p.classParameters(at, c.Parameters)
	if len(c.Parameters) == 0 {
		p.required(at, "must contain at least one key/value pair")
	}
	return p.list
}

// VolumeAttributesClassUpdate checks a class that replaces old.
func VolumeAttributesClassUpdate(c, old *storagev1.VolumeAttributesClass) field.ErrorList {
	p := &problems{list: VolumeAttributesClass(c)}
	if c.DriverName != old.DriverName {
		p.forbidden(field.NewPath("driverName"), "updates to driverName are forbidden.")
	}
	q := &problems{}
	if q.unchanged(nil, c.Parameters, old.Parameters); len(q.list) > 0 {
		p.forbidden(field.NewPath("parameters"), "updates to parameters are forbidden.")
	}
	return p.list
}
