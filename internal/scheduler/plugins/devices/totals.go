package devices

import (
	"context"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Totals counts devices of classes on nodes, for scores. It holds for one attempt.
type Totals struct {
	m *Manager
	// on has the slices of single nodes, others those of several.
	on     map[string][]*resourcev1.ResourceSlice
	others []*resourcev1.ResourceSlice
	given  *structured.AllocatedState
}

// Totals returns what there is now, and what of it is given away.
func (m *Manager) Totals() (*Totals, error) {
	given, err := m.ResourceClaims().GatherAllocatedState()
	if err != nil {
		return nil, err
	}
	all, err := m.slices.ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	t := &Totals{m: m, on: map[string][]*resourcev1.ResourceSlice{}, given: given}
	for _, s := range all {
		if name := ptr.Deref(s.Spec.NodeName, ""); name != "" {
			t.on[name] = append(t.on[name], s)
		} else {
			t.others = append(t.others, s)
		}
	}
	return t, nil
}

// Of returns how many devices a node has of the class that an extended resource stands for, and how many of them are given
// away: none if there is no such class, or it cannot be told. Upstream counts in the same way.
func (t *Totals) Of(ctx context.Context, resource v1.ResourceName, node *v1.Node) (all, given int64) {
	class := t.m.classes.GetDeviceClass(resource)
	if class == nil {
		return 0, 0
	}
	for _, list := range [][]*resourcev1.ResourceSlice{t.on[node.Name], t.others} {
		for _, s := range list {
			a, g, err := t.in(ctx, s, class, node)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot count the devices of a class, whose resource does not count for scores",
					"deviceClass", class.Name, "resourceSlice", klog.KObj(s), "node", klog.KObj(node))
				return 0, 0
			}
			all, given = all+a, given+g
		}
	}
	return all, given
}

// in counts the devices of a slice that are a node's and of a class.
func (t *Totals) in(ctx context.Context, s *resourcev1.ResourceSlice, class *resourcev1.DeviceClass, node *v1.Node) (all, given int64, err error) {
	each := ptr.Deref(s.Spec.PerDeviceNodeSelection, false)
	if !each {
		here, err := structured.NodeMatches(features, node, ptr.Deref(s.Spec.NodeName, ""), ptr.Deref(s.Spec.AllNodes, false), s.Spec.NodeSelector)
		if err != nil || !here {
			return 0, 0, err
		}
	}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		if each {
			here, err := structured.NodeMatches(features, node, ptr.Deref(d.NodeName, ""), ptr.Deref(d.AllNodes, false), d.NodeSelector)
			if err != nil {
				return 0, 0, err
			}
			if !here {
				continue
			}
		}
		is, err := t.isOf(ctx, class, s.Spec.Driver, d)
		if err != nil {
			return 0, 0, err
		}
		if !is {
			continue
		}
		all++
		if structured.IsDeviceAllocated(structured.MakeDeviceID(s.Spec.Driver, s.Spec.Pool.Name, d.Name), t.given) {
			given++
		}
	}
	return all, given, nil
}

// isOf reports whether a device is of a class.
func (t *Totals) isOf(ctx context.Context, class *resourcev1.DeviceClass, driver string, d *resourcev1.Device) (bool, error) {
	for _, selector := range class.Spec.Selectors {
		if selector.CEL == nil {
			continue
		}
		compiled := t.m.cel.GetOrCompile(selector.CEL.Expression)
		if compiled.Error != nil {
			return false, compiled.Error
		}
		is, _, err := compiled.DeviceMatches(ctx, cel.Device{Driver: driver, Attributes: d.Attributes, Capacity: d.Capacity})
		if err != nil || !is {
			return false, err
		}
	}
	return true, nil
}
