// Package plugins has the scheduling plugins that are on by default, with upstream's names and with
// the reasons that users know from FailedScheduling events.
package plugins

import (
	v1 "k8s.io/api/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// Default returns the plugins of the default profile, in their order, with
// upstream's weights.
func Default(client clientset.Interface) []framework.WeightedPlugin {
	all := []framework.WeightedPlugin{
		{Plugin: SchedulingGates{}},
		{Plugin: PrioritySort{}},
		{Plugin: NodeUnschedulable{}},
		{Plugin: NodeName{}},
		{Plugin: TaintToleration{}, Weight: 3},
		{Plugin: NodeAffinity{}, Weight: 2},
		{Plugin: NodePorts{}},
		{Plugin: NodeResourcesFit{}, Weight: 1},
		{Plugin: DefaultBinder{Client: client}},
	}
	for _, m := range standIns() {
		all = append(all, framework.WeightedPlugin{Plugin: m})
	}
	return all
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
