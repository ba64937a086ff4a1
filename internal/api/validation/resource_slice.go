package validation

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ResourceSlice checks a slice of the devices of a driver.
func ResourceSlice(s *resourcev1.ResourceSlice) field.ErrorList { return resourceSlice(s, nil) }

// ResourceSliceUpdate checks a slice that replaces old.
func ResourceSliceUpdate(s, old *resourcev1.ResourceSlice) field.ErrorList {
	p, at := &problems{list: resourceSlice(s, old)}, field.NewPath("spec")
	immutable(p, at.Child("pool", "name"), s.Spec.Pool.Name, old.Spec.Pool.Name)
	immutable(p, at.Child("driver"), s.Spec.Driver, old.Spec.Driver)
	p.unchanged(at.Child("nodeName"), s.Spec.NodeName, old.Spec.NodeName)
	return p.list
}

func resourceSlice(s, old *resourcev1.ResourceSlice) field.ErrorList {
	p, at, spec := &problems{}, field.NewPath("spec"), &s.Spec
	p.csiDriver(at.Child("driver"), spec.Driver)
	p.poolName(at.Child("pool", "name"), spec.Pool.Name)
	p.positive(at.Child("pool", "resourceSliceCount"), spec.Pool.ResourceSliceCount)
	if spec.Pool.Generation < 0 {
		p.invalid(at.Child("pool", "generation"), spec.Pool.Generation, "must be greater than or equal to zero")
	}
	p.where(at, &place{spec.NodeName, spec.NodeSelector, spec.AllNodes, spec.PerDeviceNodeSelection},
		"exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required")
	if spec.NodeSelector != nil && len(spec.NodeSelector.NodeSelectorTerms) != 1 {
		p.invalid(at.Child("nodeSelector", "nodeSelectorTerms"), spec.NodeSelector.NodeSelectorTerms, "must have exactly one node selector term")
	}
	if spec.SharedCounters != nil && spec.Devices != nil {
		p.invalid(at, "", "only one of `sharedCounters` or `devices` is allowed")
	}
	most := resourcev1.ResourceSliceMaxDevices
	if slices.ContainsFunc(spec.Devices, advanced) {
		most = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	}
	perDevice := spec.PerDeviceNodeSelection != nil && *spec.PerDeviceNodeSelection
	distinct(p, at.Child("devices"), spec.Devices, most, func(at path, d *resourcev1.Device) {
		p.device(at, d, sameTaints(d, old))
		p.deviceNodes(at, d, perDevice)
	}, func(d *resourcev1.Device) string { return d.Name })
	distinct(p, at.Child("sharedCounters"), spec.SharedCounters, resourcev1.ResourceSliceMaxCounterSets, func(at path, c *resourcev1.CounterSet) {
		p.counters(at, at.Child("name"), c.Name, c.Counters)
	}, func(c *resourcev1.CounterSet) string { return c.Name })
	return p.list
}

// advanced tells whether a device uses what makes slices larger.
func advanced(d resourcev1.Device) bool {
	for _, a := range d.Attributes {
		if a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
			return true
		}
	}
	return len(d.Taints) > 0 || len(d.ConsumesCounters) > 0
}

// sameTaints tells whether the device had the same taints before; these are not checked again.
func sameTaints(d *resourcev1.Device, old *resourcev1.ResourceSlice) bool {
	if old == nil {
		return false
	}
	i := slices.IndexFunc(old.Spec.Devices, func(o resourcev1.Device) bool { return o.Name == d.Name })
	return i >= 0 && apiequality.Semantic.DeepEqual(old.Spec.Devices[i].Taints, d.Taints)
}

// place says on which nodes devices are.
type place struct {
	node           *string
	selector       *corev1.NodeSelector
	all, perDevice *bool
}

// where checks that a place is named in one way; detail says so.
func (p *problems) where(at path, w *place, detail string) {
	var ways []string
	if w.node != nil {
		if *w.node == "" {
			p.invalid(at.Child("nodeName"), *w.node, "must be either unset or set to a non-empty string")
		} else {
			ways = append(ways, "`nodeName`")
			p.subdomain(at.Child("nodeName"), *w.node)
		}
	}
	if w.selector != nil {
		ways = append(ways, "`nodeSelector`")
		p.nodeSelector(at.Child("nodeSelector"), w.selector)
	}
	for _, f := range []struct {
		name string
		set  *bool
	}{{"allNodes", w.all}, {"perDeviceNodeSelection", w.perDevice}} {
		if f.set != nil && !*f.set {
			p.invalid(at.Child(f.name), false, "must be either unset or set to true")
		} else if f.set != nil {
			ways = append(ways, "`"+f.name+"`")
		}
	}
	switch len(ways) {
	case 0:
		p.required(at, detail)
	case 1:
	default:
		p.invalid(at, "{"+strings.Join(ways, ", ")+"}", "%s", detail+", but multiple fields are set")
	}
}

func (p *problems) deviceNodes(at path, d *resourcev1.Device, perDevice bool) {
	switch {
	case perDevice:
		p.where(at, &place{node: d.NodeName, selector: d.NodeSelector, all: d.AllNodes},
			"exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec")
	case d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil:
		p.add(field.Invalid(at, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"))
	}
}

func (p *problems) device(at path, d *resourcev1.Device, sameTaints bool) {
	p.label(at.Child("name"), d.Name)
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		p.invalid(at, n, "the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
	}
	values := 0
	for name, a := range d.Attributes {
		values += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
		p.qualifiedDevice(at.Child("attributes"), name)
		p.attribute(at.Child("attributes").Key(string(name)), &a)
	}
	if values > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		p.invalid(at, values, "the total number of attribute values must not exceed %d", resourcev1.ResourceSliceMaxAttributeValuesPerDevice)
	}
	for name, c := range d.Capacity {
		p.qualifiedDevice(at.Child("capacity"), name)
		policy := at.Child("capacity").Key(string(name)).Child("requestPolicy")
		switch {
		case c.RequestPolicy == nil:
		case d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations:
			p.requestPolicy(policy, c.Value, c.RequestPolicy)
		default:
			p.forbidden(policy, "allowMultipleAllocations must be true")
		}
	}
	if !sameTaints {
		listed(p, at.Child("taints"), d.Taints, resourcev1.DeviceTaintsMaxLength, p.deviceTaint)
	}
	distinct(p, at.Child("consumesCounters"), d.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice,
		func(at path, c *resourcev1.DeviceCounterConsumption) {
			p.counters(at, at.Child("counterSet"), c.CounterSet, c.Counters)
		},
		func(c *resourcev1.DeviceCounterConsumption) string { return c.CounterSet })
	p.bindingConditions(at, d.BindingConditions, d.BindingFailureConditions)
}

func (p *problems) deviceTaint(at path, t *resourcev1.DeviceTaint) {
	p.addAll(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
	if t.Value != "" {
		matches(p, at.Child("value"), t.Value, utilvalidation.IsValidLabelValue(t.Value))
	}
	oneOfRequired(p, at.Child("effect"), t.Effect, deviceEffects...)
}

// counters checks a set of counters, or what a device takes of one.
func (p *problems) counters(at, nameAt path, name string, counters map[string]resourcev1.Counter) {
	if p.present(nameAt, name) {
		p.label(nameAt, name)
	}
	at = at.Child("counters")
	switch n := len(counters); {
	case n == 0:
		p.required(at, "")
	case n > resourcev1.ResourceSliceMaxCountersPerCounterSet:
		p.add(field.TooMany(at, n, resourcev1.ResourceSliceMaxCountersPerCounterSet))
		return
	}
	for counter := range counters {
		p.label(at, counter)
	}
}

// semver is version 2.0.0 of semver.org.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

func (p *problems) attribute(at path, a *resourcev1.DeviceAttribute) {
	set := 0
	one := func(present bool) bool {
		if present {
			set++
		}
		return present
	}
	list := func(name string, present bool, n int) {
		if one(present) && n == 0 {
			p.invalid(at.Child(name), []string{}, "must not be empty if specified")
		}
	}
	one(a.BoolValue != nil)
	one(a.IntValue != nil)
	if one(a.StringValue != nil) {
		p.attributeText(at.Child("string"), *a.StringValue)
	}
	if one(a.VersionValue != nil) {
		p.attributeVersion(at.Child("version"), *a.VersionValue)
	}
	list("bools", a.BoolValues != nil, len(a.BoolValues))
	list("ints", a.IntValues != nil, len(a.IntValues))
	list("strings", a.StringValues != nil, len(a.StringValues))
	list("versions", a.VersionValues != nil, len(a.VersionValues))
	for i, s := range a.StringValues {
		p.attributeText(at.Child("strings").Index(i), s)
	}
	for i, s := range a.VersionValues {
		p.attributeVersion(at.Child("versions").Index(i), s)
	}
	if set != 1 {
		p.invalid(at, *a, "exactly one value must be specified")
	}
}

func (p *problems) attributeText(at path, s string) {
	if len(s) > resourcev1.DeviceAttributeMaxValueLength {
		p.add(field.TooLong(at, "", resourcev1.DeviceAttributeMaxValueLength))
	}
}

func (p *problems) attributeVersion(at path, s string) {
	if !semver.MatchString(s) {
		p.invalid(at, s, "must be a string compatible with semver.org spec 2.0.0")
	}
	p.attributeText(at, s)
}

// maxRequestValues is how many values a capacity can be requested in.
const maxRequestValues = 10

// requestPolicy checks how much of a capacity can be requested: some values, or a range.
func (p *problems) requestPolicy(at path, capacity resource.Quantity, r *resourcev1.CapacityRequestPolicy) {
	switch {
	case len(r.ValidValues) > 0 && r.ValidRange != nil:
		p.forbidden(at, `%s`, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)
	case len(r.ValidValues) > 0 && r.Default == nil:
		p.required(at.Child("default"), "required when validValues is defined")
	case len(r.ValidValues) > 0:
		p.requestValues(at.Child("validValues"), capacity, r)
	case r.ValidRange != nil && r.Default == nil:
		p.required(at.Child("default"), "required when validRange is defined")
	case r.ValidRange != nil:
		p.requestRange(at.Child("validRange"), capacity, r)
	}
}

func (p *problems) requestValues(at path, capacity resource.Quantity, r *resourcev1.CapacityRequestPolicy) {
	found := false
	distinct(p, at, r.ValidValues, maxRequestValues, func(at path, v *resource.Quantity) {
		if v.Cmp(capacity) > 0 {
			p.invalid(at, v.String(), "option is larger than capacity value: %s", &capacity)
		}
		found = found || v.Cmp(*r.Default) == 0
	}, func(v *resource.Quantity) int64 { return v.Value() })
	for i := 1; i < len(r.ValidValues); i++ {
		if r.ValidValues[i-1].Cmp(r.ValidValues[i]) > 0 {
			p.invalid(at.Index(i), r.ValidValues[i].String(), "values must be sorted in ascending order")
		}
	}
	if !found {
		p.invalid(at, r.Default.String(), "default value is not valid according to the requestPolicy")
	}
}

func (p *problems) requestRange(at path, capacity resource.Quantity, r *resourcev1.CapacityRequestPolicy) {
	least, most, step := r.ValidRange.Min, r.ValidRange.Max, r.ValidRange.Step
	if least == nil {
		p.required(at.Child("min"), "required when validRange is defined")
		return
	}
	greater := func(name string, a, b *resource.Quantity, blamed *resource.Quantity, detail string) {
		if a.Cmp(*b) > 0 {
			p.invalid(at.Child(name), blamed.String(), "%s", detail)
		}
	}
	greater("min", least, &capacity, least, fmt.Sprintf("min is larger than capacity value: %s", &capacity))
	greater("min", least, r.Default, r.Default, fmt.Sprintf("default is less than min: %s", least))
	if most != nil {
		greater("max", least, most, least, fmt.Sprintf("min is larger than max: %s", most))
		greater("max", most, &capacity, most, fmt.Sprintf("max is larger than capacity value: %s", &capacity))
		greater("max", r.Default, most, r.Default, fmt.Sprintf("default is more than max: %s", most))
	}
	if step == nil {
		return
	}
	if step.Value() <= 0 {
		p.invalid(at.Child("step"), step.String(), "must be greater than zero")
		return
	}
	sum := least.DeepCopy()
	sum.Add(*step)
	greater("step", &sum, &capacity, step, fmt.Sprintf("one step %s is larger than capacity value: %s", &sum, &capacity))
	for _, v := range []*resource.Quantity{r.Default, most} {
		if v != nil && (v.Value()-least.Value())%step.Value() != 0 {
			p.invalid(at.Child("step"), v.String(), "value is not a multiple of a given step (%s) from (%s)", step, least)
		}
	}
}
