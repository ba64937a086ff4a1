// Package plugins has the scheduling plugins that are on by default, with upstream's names and with
// the reasons that users know from FailedScheduling events.
package plugins

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins/devices"
	"wherry.dev/internal/scheduler/plugins/volumes"
)

// Gates are of features that are off by default.
type Gates struct {
	// PodGroups is GenericWorkload: the pods of a pod group are scheduled together.
	PodGroups bool
	// Topology is TopologyAwareWorkloadScheduling, which takes GenericWorkload, too: pod groups may want nodes of one domain.
	Topology bool
}

// Default returns the plugins of the default profile, in their order, with upstream's weights.
func Default(gates Gates) *configv1.Plugins {
	var c configv1.Plugins
	for _, d := range []struct {
		name   string
		weight int32
	}{
		{"SchedulingGates", 0},
		{"PrioritySort", 0},
		{"NodeUnschedulable", 0},
		{"NodeName", 0},
		{"TaintToleration", 3},
		{"NodeAffinity", 2},
		{"NodePorts", 0},
		{"NodeResourcesFit", 1},
		{"VolumeRestrictions", 0},
		{"NodeVolumeLimits", 0},
		{"VolumeBinding", 0},
		{"VolumeZone", 0},
		{"PodTopologySpread", 2},
		{"InterPodAffinity", 2},
		{"DynamicResources", 2},
		{"DefaultPreemption", 0},
		{"NodeResourcesBalancedAllocation", 1},
		{"ImageLocality", 1},
		{"DefaultBinder", 0},
		{"NodeDeclaredFeatures", 0},
	} {
		e := configv1.Plugin{Name: d.name}
		if d.weight > 0 {
			e.Weight = new(d.weight)
		}
		c.MultiPoint.Enabled = append(c.MultiPoint.Enabled, e)
	}
	if gates.PodGroups {
		c.MultiPoint.Enabled = append(c.MultiPoint.Enabled, configv1.Plugin{Name: GangScheduling})
	}
	if gates.Topology {
		c.MultiPoint.Enabled = append(c.MultiPoint.Enabled,
			configv1.Plugin{Name: TopologyPlacementGenerator}, configv1.Plugin{Name: PodGroupPodsCount, Weight: new(int32(1))})
	}
	return &c
}

// Registry returns all plugins that there are, for the profiles of one scheduler.
func Registry() framework.Registry {
	return framework.Registry{
		"SchedulingGates":                 plain(SchedulingGates{}),
		"PrioritySort":                    plain(PrioritySort{}),
		"NodeUnschedulable":               plain(NodeUnschedulable{}),
		"NodeName":                        plain(NodeName{}),
		"TaintToleration":                 plain(TaintToleration{}),
		"NodePorts":                       plain(NodePorts{}),
		"NodeAffinity":                    with(newNodeAffinity),
		"NodeResourcesFit":                with(newNodeResourcesFit),
		"NodeResourcesBalancedAllocation": with(newBalancedAllocation),
		"PodTopologySpread":               with(newPodTopologySpread),
		"InterPodAffinity":                with(newInterPodAffinity),
		"DefaultPreemption":               with(newDefaultPreemption),
		"ImageLocality":                   with(newImageLocality),
		"DefaultBinder":                   with(newDefaultBinder),
		"VolumeRestrictions":              of(volumes.NewRestrictions),
		"NodeVolumeLimits":                of(volumes.NewLimits),
		"VolumeBinding":                   with(volumes.BindingFactory()),
		"VolumeZone":                      of(volumes.NewZone),
		"DynamicResources":                with(devices.New),
		"NodeDeclaredFeatures":            plain(NodeDeclaredFeatures{}),
		GangScheduling:                    of(newGangScheduling),
		TopologyPlacementGenerator:        of(newTopologyPlacements),
		PodGroupPodsCount:                 of(newPodsCount),
	}
}

// plain is for a plugin that needs nothing.
func plain(p fwk.Plugin) framework.Factory {
	return with(func(context.Context, *none, fwk.Handle) (fwk.Plugin, error) { return p, nil })
}

// of is for a plugin that takes no arguments, but needs the framework.
func of(build func(fwk.Handle) (fwk.Plugin, error)) framework.Factory {
	return with(func(_ context.Context, _ *none, h fwk.Handle) (fwk.Plugin, error) { return build(h) })
}

// none are the arguments of a plugin that takes none.
type none struct{ runtime.Object }

// with is for a plugin with arguments of type *A; it gets empty ones if the configuration has none.
func with[A any](build func(context.Context, *A, fwk.Handle) (fwk.Plugin, error)) framework.Factory {
	return func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		a := new(A)
		if args != nil {
			var ok bool
			if a, ok = args.(any).(*A); !ok {
				return nil, errors.New("pluginConfig: this plugin takes no such arguments")
			}
		}
		return build(ctx, a, h)
	}
}

// register returns cluster events without a hint: each of them wakes the pod.
func register(events ...fwk.ClusterEvent) []fwk.ClusterEventWithHint {
	out := make([]fwk.ClusterEventWithHint, 0, len(events))
	for _, e := range events {
		out = append(out, fwk.ClusterEventWithHint{Event: e})
	}
	return out
}

// node returns the API object that a filter judges. The snapshot has no node without one.
func node(n fwk.NodeInfo) *v1.Node { return n.Node() }
