package main

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Drivers of devices, the classes of theirs, and the claims of each namespace, which its pods share.
const (
	driverGPU, driverNIC             = "gpu.example.com", "nic.example.com"
	classGPU, classBig, classSlice   = "gpu", "big", "slice"
	classNIC, classOf                = "nic", "card"
	deviceClaims                     = "dev-0 dev-1 dev-2 dev-3 dev-4"
	kinds3                           = "small big"
	attrModel, attrNUMA, attrVersion = "model", "numa", "version"
	capMemory, capBandwidth          = "memory", "bandwidth"
	ready, broken                    = "example.com/ready", "example.com/broken" // conditions of devices
)

// devices returns what a cluster has of devices, with claims in all namespaces.
func (d dice) devices(nodes int) []object {
	out := d.classes()
	for i := range nodes {
		if d.chance(4) {
			continue
		}
		out = append(out, d.cards(fmt.Sprint("n-", i)))
		if d.chance(3) {
			out = append(out, d.parts(fmt.Sprint("n-", i))...)
		}
	}
	for _, zone := range some(d, 2, strings.Fields(zones)...) {
		out = append(out, d.network(zone))
	}
	for ns := range strings.FieldsSeq(namespaces) {
		for name := range strings.FieldsSeq(deviceClaims) {
			out = append(out, d.deviceClaim(ns, name))
		}
	}
	return out
}

func (d dice) classes() []object {
	of := func(name string, expressions ...string) *resourcev1.DeviceClass {
		c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.Selectors = selectors(expressions...)
		return c
	}
	isGPU := fmt.Sprintf("device.driver == %q", driverGPU)
	out := []object{
		of(classGPU, isGPU+` && !("part" in device.attributes[device.driver])`),
		of(classBig, isGPU, fmt.Sprintf(`device.attributes[%q].?model.orValue("") == "big"`, driverGPU)),
		of(classSlice, isGPU+` && "part" in device.attributes[device.driver]`),
		of(classNIC, fmt.Sprintf("device.driver == %q", driverNIC)),
	}
	if d.chance(2) {
		card := of(classOf, isGPU+` && !("part" in device.attributes[device.driver])`)
		card.Spec.ExtendedResourceName = new(string(resourceGPU))
		out = append(out, card)
	}
	return out
}

func selectors(expressions ...string) []resourcev1.DeviceSelector {
	var out []resourcev1.DeviceSelector
	for _, e := range expressions {
		out = append(out, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
	}
	return out
}

// cards are the whole devices of a node.
func (d dice) cards(node string) *resourcev1.ResourceSlice {
	s := slice(driverGPU, node, 1)
	s.Spec.NodeName = &node
	if d.chance(15) {
		s.Spec.Pool.ResourceSliceCount = 2 // one is missing
	}
	for i := range 1 + d.IntN(4) {
		c := resourcev1.Device{
			Name: fmt.Sprint("card-", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				attrNUMA:    {IntValue: new(int64(d.IntN(2)))},
				attrVersion: {VersionValue: new(d.word("1.0.0 1.2.0 2.0.0"))},
			},
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
				capMemory: {Value: resource.MustParse(d.word("8Gi 16Gi 40Gi"))},
			},
		}
		if !d.chance(6) {
			c.Attributes[attrModel] = resourcev1.DeviceAttribute{StringValue: new(d.word(kinds3))}
		}
		if d.chance(8) {
			c.Taints = []resourcev1.DeviceTaint{{
				Key: "hot", Value: d.word("yes very"),
				Effect: one(d, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNoExecute),
			}}
		}
		if d.chance(10) {
			c.BindingConditions, c.BindingFailureConditions = []string{ready}, []string{broken}
		}
		s.Spec.Devices = append(s.Spec.Devices, c)
	}
	return s
}

// parts are those of one more device of a node: a whole, or halves, or quarters of it.
func (d dice) parts(node string) []object {
	pool := node + "-parts"
	counters := slice(driverGPU, pool, 2)
	counters.Name += "-counters"
	counters.Spec.NodeName = &node
	counters.Spec.SharedCounters = []resourcev1.CounterSet{{
		Name: "whole", Counters: map[string]resourcev1.Counter{capMemory: {Value: resource.MustParse("40Gi")}},
	}}
	s := slice(driverGPU, pool, 2)
	s.Spec.NodeName = &node
	for _, part := range []struct {
		name, takes string
		n           int
	}{{"whole", "40Gi", 1}, {"half", "20Gi", 2}, {"quarter", "10Gi", 1 + d.IntN(4)}} {
		for i := range part.n {
			s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
				Name:       fmt.Sprintf("%s-%d", part.name, i),
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"part": {StringValue: new(part.name)}},
				Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
					capMemory: {Value: resource.MustParse(part.takes)},
				},
				ConsumesCounters: []resourcev1.DeviceCounterConsumption{{
					CounterSet: "whole",
					Counters:   map[string]resourcev1.Counter{capMemory: {Value: resource.MustParse(part.takes)}},
				}},
			})
		}
	}
	return []object{counters, s}
}

// network has devices of which several claims may each have a share, for a zone or for everybody.
func (d dice) network(zone string) *resourcev1.ResourceSlice {
	s := slice(driverNIC, "net-"+zone, 1)
	if d.chance(4) {
		s.Spec.AllNodes = new(true)
	} else {
		s.Spec.NodeSelector = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{
				{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{zone}},
			},
		}}}
	}
	for i := range 1 + d.IntN(2) {
		shared := !d.chance(4)
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
			Name: fmt.Sprint("port-", i), AllowMultipleAllocations: &shared,
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{capBandwidth: d.bandwidth(shared)},
		})
	}
	return s
}

// bandwidth says how much there is, and what a share of it may be.
func (d dice) bandwidth(shared bool) resourcev1.DeviceCapacity {
	out := resourcev1.DeviceCapacity{Value: resource.MustParse("10")}
	if !shared {
		return out
	}
	switch d.IntN(3) {
	case 0:
		out.RequestPolicy = &resourcev1.CapacityRequestPolicy{
			Default:    new(resource.MustParse("1")),
			ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: new(resource.MustParse("1")), Step: new(resource.MustParse("2"))},
		}
	case 1:
		out.RequestPolicy = &resourcev1.CapacityRequestPolicy{
			Default:     new(resource.MustParse("2")),
			ValidValues: []resource.Quantity{resource.MustParse("2"), resource.MustParse("4"), resource.MustParse("8")},
		}
	}
	return out
}

func slice(driver, pool string, of int64) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: driver + "-" + pool},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, Pool: resourcev1.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: of},
		},
	}
}

// deviceClaim returns a claim that has no devices yet. Only that of a namespace with the label may have access as an
// administrator.
func (d dice) deviceClaim(ns, name string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: ns + "-" + name}}
	for i := range 1 + d.IntN(2) {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, d.request(fmt.Sprint("r-", i), ns == adminNamespace))
	}
	if d.chance(3) {
		attribute := new(resourcev1.FullyQualifiedName(driverGPU + "/" + one(d, attrNUMA, attrModel)))
		constraint := resourcev1.DeviceConstraint{MatchAttribute: attribute}
		if d.chance(3) {
			constraint = resourcev1.DeviceConstraint{DistinctAttribute: attribute}
		}
		c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, constraint)
	}
	return c
}

// adminNamespace is the one whose claims may ask for administrative access.
const adminNamespace = "ns-0"

func (d dice) request(name string, admin bool) resourcev1.DeviceRequest {
	if d.chance(4) {
		out := resourcev1.DeviceRequest{Name: name}
		for i := range 2 + d.IntN(2) {
			e := d.exactly()
			out.FirstAvailable = append(out.FirstAvailable, resourcev1.DeviceSubRequest{
				Name: fmt.Sprint("s-", i), DeviceClassName: e.DeviceClassName, Selectors: e.Selectors,
				AllocationMode: e.AllocationMode, Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity,
			})
		}
		return out
	}
	e := d.exactly()
	if admin && d.chance(3) {
		e.AdminAccess = new(true)
	}
	return resourcev1.DeviceRequest{Name: name, Exactly: &e}
}

func (d dice) exactly() resourcev1.ExactDeviceRequest {
	e := resourcev1.ExactDeviceRequest{
		DeviceClassName: one(d, classGPU, classGPU, classGPU, classBig, classSlice, classNIC),
		AllocationMode:  resourcev1.DeviceAllocationModeExactCount, Count: int64(1 + d.IntN(5)/3),
	}
	if d.chance(25) {
		e.DeviceClassName = "missing"
	}
	if d.chance(6) {
		e.AllocationMode, e.Count = resourcev1.DeviceAllocationModeAll, 0
	}
	switch {
	case e.DeviceClassName == classNIC && d.chance(2):
		e.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
			capBandwidth: resource.MustParse(d.word("1 3 4 12")),
		}}
	case e.DeviceClassName == classSlice:
		e.Selectors = selectors(fmt.Sprintf(`device.attributes[%q].part == %q`, driverGPU, d.word("whole half quarter")))
	case e.DeviceClassName == classGPU && d.chance(3):
		e.Selectors = selectors(one(d,
			fmt.Sprintf(`device.capacity[%q].memory.compareTo(quantity("16Gi")) >= 0`, driverGPU),
			fmt.Sprintf(`device.attributes[%q].version.isGreaterThan(semver("1.1.0"))`, driverGPU),
			fmt.Sprintf(`device.attributes[%q].numa == 1`, driverGPU),
			fmt.Sprintf(`device.attributes[%q].model == "small"`, driverGPU), // an error for devices without a model
		))
	}
	if d.chance(4) {
		e.Tolerations = []resourcev1.DeviceToleration{{Key: "hot", Operator: resourcev1.DeviceTolerationOpExists}}
		if d.chance(2) {
			e.Tolerations[0].Operator, e.Tolerations[0].Value = resourcev1.DeviceTolerationOpEqual, "yes"
		}
	}
	return e
}

// useDevices gives a pod claims, or an extended resource that a node or a class may have.
func (d dice) useDevices(p *v1.Pod) {
	for _, name := range some(d, 3, strings.Fields(deviceClaims)...) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{
			Name: name, ResourceClaimName: new(p.Namespace + "-" + name),
		})
	}
}

// extendedOf returns what a pod asks for that devices may stand for; nothing if it does not.
func extendedOf(p *v1.Pod) v1.ResourceName {
	for _, c := range p.Spec.Containers {
		for name := range c.Resources.Limits {
			return name
		}
	}
	return ""
}

// useExtended has the containers of a pod ask for what devices may stand for.
func (d dice) useExtended(p *v1.Pod) {
	name := one(d, resourceGPU, resourceGPU, v1.ResourceName(resourcev1.ResourceDeviceClassPrefix+classBig))
	for i := range p.Spec.Containers {
		if i > 0 && d.chance(2) {
			continue
		}
		r := &p.Spec.Containers[i].Resources
		r.Requests[name] = resource.MustParse(d.word("1 1 2"))
		r.Limits = v1.ResourceList{name: r.Requests[name]}
	}
}
