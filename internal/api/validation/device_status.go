package validation

import (
	"slices"
	"strings"

	"github.com/google/uuid"
	resourcev1 "k8s.io/api/resource/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DeviceID identifies a share of a device, or a whole one.
type DeviceID struct{ Driver, Pool, Device, Share string }

// Allocated returns the devices that a claim has.
func Allocated(c *resourcev1.ResourceClaim) map[DeviceID]bool {
	out := map[DeviceID]bool{}
	if c.Status.Allocation == nil {
		return out
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		id := DeviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
		if r.ShareID != nil {
			id.Share = string(*r.ShareID)
		}
		out[id] = true
	}
	return out
}

// IDOf returns the device of which a status tells.
func IDOf(s *resourcev1.AllocatedDeviceStatus) DeviceID {
	id := DeviceID{Driver: s.Driver, Pool: s.Pool, Device: s.Device}
	if s.ShareID != nil {
		id.Share = *s.ShareID
	}
	return id
}

// ResourceClaimStatusUpdate checks the status of a claim that replaces old. An allocation stays as it
// is until it is given up.
func ResourceClaimStatusUpdate(c, old *resourcev1.ResourceClaim) field.ErrorList {
	d := &deviceContext{problems: &problems{}, requests: requestNames(&c.Spec.Devices)}
	at, s := field.NewPath("status"), &c.Status
	distinct(d.problems, at.Child("reservedFor"), s.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize,
		func(at path, r *resourcev1.ResourceClaimConsumerReference) {
			d.present(at.Child("resource"), r.Resource)
			d.present(at.Child("name"), r.Name)
			d.present(at.Child("uid"), string(r.UID))
		},
		func(r *resourcev1.ResourceClaimConsumerReference) string { return string(r.UID) })
	has := Allocated(c)
	distinct(d.problems, at.Child("devices"), s.Devices, len(s.Devices), func(at path, s *resourcev1.AllocatedDeviceStatus) {
		d.deviceStatus(at, s)
		if !has[IDOf(s)] {
			d.invalid(at, IDOf(s), "must be an allocated device in the claim")
		}
	}, IDOf)
	d.reserved(at.Child("reservedFor"), c, old)
	switch {
	case s.Allocation != nil && old.Status.Allocation != nil:
		d.unchanged(at.Child("allocation"), s.Allocation, old.Status.Allocation)
	case s.Allocation != nil:
		d.allocation(at.Child("allocation"), s.Allocation)
	}
	return d.list
}

func (p *problems) reserved(at path, c, old *resourcev1.ResourceClaim) {
	switch {
	case len(c.Status.ReservedFor) == 0:
	case c.Status.Allocation == nil:
		p.forbidden(at, "may not be specified when `allocated` is not set")
	case c.DeletionTimestamp != nil:
		for _, r := range c.Status.ReservedFor {
			if !slices.Contains(old.Status.ReservedFor, r) {
				p.forbidden(at, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
				return
			}
		}
	}
}

func (d *deviceContext) allocation(at path, a *resourcev1.AllocationResult) {
	devices := at.Child("devices")
	listed(d.problems, devices.Child("results"), a.Devices.Results, resourcev1.AllocationResultsMaxSize, d.result)
	listed(d.problems, devices.Child("config"), a.Devices.Config, 2*resourcev1.DeviceConfigMaxSize, d.allocatedConfig)
	if a.NodeSelector != nil {
		d.nodeSelector(at.Child("nodeSelector"), a.NodeSelector)
	}
}

func (d *deviceContext) result(at path, r *resourcev1.DeviceRequestAllocationResult) {
	d.requestRef(at.Child("request"), &r.Request)
	d.csiDriver(at.Child("driver"), r.Driver)
	d.poolName(at.Child("pool"), r.Pool)
	d.label(at.Child("device"), r.Device)
	d.bindingConditions(at, r.BindingConditions, r.BindingFailureConditions)
	if r.ShareID != nil {
		d.uid(at.Child("shareID"), string(*r.ShareID))
	}
}

func (d *deviceContext) allocatedConfig(at path, c *resourcev1.DeviceAllocationConfiguration) {
	oneOfRequired(d.problems, at.Child("source"), c.Source, resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass)
	distinct(d.problems, at.Child("requests"), c.Requests, resourcev1.DeviceRequestsMaxSize, d.requestRef, itself)
	d.deviceConfiguration(at, &c.DeviceConfiguration, false)
}

func (d *deviceContext) deviceStatus(at path, s *resourcev1.AllocatedDeviceStatus) {
	d.csiDriver(at.Child("driver"), s.Driver)
	d.poolName(at.Child("pool"), s.Pool)
	d.label(at.Child("device"), s.Device)
	if s.ShareID != nil {
		d.uid(at.Child("shareID"), *s.ShareID)
	}
	if n := len(s.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
		d.add(field.TooMany(at.Child("conditions"), n, resourcev1.AllocatedDeviceStatusMaxConditions))
	}
	d.addAll(metavalidation.ValidateConditions(s.Conditions, at.Child("conditions")))
	if s.Data != nil && len(s.Data.Raw) > 0 {
		d.jsonObject(at.Child("data"), *s.Data, resourcev1.AllocatedDeviceStatusDataMaxLength)
	}
	if s.NetworkData != nil {
		d.networkData(at.Child("networkData"), s.NetworkData)
	}
}

func (p *problems) networkData(at path, n *resourcev1.NetworkDeviceData) {
	if len(n.InterfaceName) > resourcev1.NetworkDeviceDataInterfaceNameMaxLength {
		p.add(field.TooLong(at.Child("interfaceName"), "", resourcev1.NetworkDeviceDataInterfaceNameMaxLength))
	}
	if len(n.HardwareAddress) > resourcev1.NetworkDeviceDataHardwareAddressMaxLength {
		p.add(field.TooLong(at.Child("hardwareAddress"), "", resourcev1.NetworkDeviceDataHardwareAddressMaxLength))
	}
	distinct(p, at.Child("ips"), n.IPs, resourcev1.NetworkDeviceDataMaxIPs, func(at path, ip *string) {
		p.addAll(utilvalidation.IsValidInterfaceAddress(at, *ip))
	}, itself)
}

// uid checks an identifier that drivers and the scheduler compare as text.
func (p *problems) uid(at path, uid string) {
	if err := uuid.Validate(uid); err != nil {
		p.invalid(at, uid, "error validating uid: %v", err)
	} else if len(uid) != 36 || uid != strings.ToLower(uid) {
		p.invalid(at, uid, "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters")
	}
}

func (p *problems) poolName(at path, name string) {
	if !p.present(at, name) {
		return
	}
	if len(name) > resourcev1.PoolNameMaxLength {
		p.add(field.TooLong(at, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		p.subdomain(at, part)
	}
}

// bindingConditions checks what must, and what must not, be before a pod is bound to the device.
func (p *problems) bindingConditions(at path, conditions, failures []string) {
	good, bad := at.Child("bindingConditions"), at.Child("bindingFailureConditions")
	name := func(at path, s *string) { p.addAll(metavalidation.ValidateLabelName(*s, at)) }
	distinct(p, good, conditions, resourcev1.BindingConditionsMaxSize, name, itself)
	distinct(p, bad, failures, resourcev1.BindingFailureConditionsMaxSize, name, itself)
	for i, f := range failures {
		if slices.Contains(conditions, f) {
			p.invalid(bad.Index(i), f, "bindingFailureConditions must not overlap with bindingConditions")
		}
	}
	if len(conditions) == 0 && len(failures) > 0 {
		p.invalid(good, conditions, "bindingConditions are required to use bindingFailureConditions")
	}
	if len(failures) == 0 && len(conditions) > 0 {
		p.invalid(bad, failures, "bindingFailureConditions are required to use bindingConditions")
	}
}
