package plugins

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
)

// TopologyPlacementGenerator is the name of the plugin.
const TopologyPlacementGenerator = "TopologyPlacementGenerator"

// PodGroupPodsCount is the name of the plugin.
const PodGroupPodsCount = "PodGroupPodsCount"

// topologyPlacements lets the pods of a group be on nodes of one domain only, if the group wants that (KEP-5732).
type topologyPlacements struct{ handle fwk.Handle }

var (
	_ fwk.PlacementGeneratePlugin = topologyPlacements{}
	_ fwk.EnqueueExtensions       = topologyPlacements{}
)

func newTopologyPlacements(h fwk.Handle) (fwk.Plugin, error) { return topologyPlacements{h}, nil }

// Name returns upstream's name.
func (topologyPlacements) Name() string { return TopologyPlacementGenerator }

// topologyKey returns the label whose value must be the same for all nodes of the group's pods, or "".
func topologyKey(group *schedulingv1beta1.PodGroup) string {
	if c := group.Spec.SchedulingConstraints; c != nil && len(c.Topology) > 0 {
		return c.Topology[0].Key // validation allows no more than one
	}
	return ""
}

// GeneratePlacements returns a placement for each domain, in order; only that of the group's pods that have a node
// already, if there are any.
func (t topologyPlacements) GeneratePlacements(_ context.Context, _ fwk.PodGroupCycleState, group fwk.PodGroupInfo,
	parent *fwk.Placement,
) (*fwk.GeneratePlacementsResult, *fwk.Status) {
	key := topologyKey(group.GetPodGroup())
	if key == "" {
		return &fwk.GeneratePlacementsResult{Placements: []*fwk.Placement{parent}}, nil
	}
	taken, bound, err := t.domain(group, key)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	domains := map[string]*fwk.Placement{}
	for _, n := range parent.Nodes {
		domain, ok := n.Node().Labels[key]
		if !ok || bound && domain != taken {
			continue
		}
		if domains[domain] == nil {
			domains[domain] = &fwk.Placement{Name: domain}
		}
		domains[domain].Nodes = append(domains[domain].Nodes, n)
	}
	out := &fwk.GeneratePlacementsResult{}
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		out.Placements = append(out.Placements, domains[domain])
	}
	return out, nil
}

// domain returns the domain of the group's pods that have a node. It reports false if there are none.
func (t topologyPlacements) domain(group fwk.PodGroupInfo, key string) (domain string, bound bool, err error) {
	state, err := t.handle.SnapshotSharedLister().PodGroupStates().Get(group.GetNamespace(), group.GetName())
	if err != nil {
		return "", false, err
	}
	for _, p := range state.ScheduledPods() {
		n, err := t.handle.SnapshotSharedLister().NodeInfos().Get(p.Spec.NodeName)
		if err != nil {
			return "", false, fmt.Errorf("cannot determine the domain of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		own, ok := n.Node().Labels[key]
		switch {
		case !ok:
			return "", false, fmt.Errorf("cannot determine the domain of pod %s/%s: node %s has no label %s",
				p.Namespace, p.Name, p.Spec.NodeName, key)
		case bound && own != domain:
			return "", false, fmt.Errorf("the pod group has pods in more than one domain: %s and %s", domain, own)
		}
		domain, bound = own, true
	}
	return domain, bound, nil
}

// EventsToRegister returns what can make a domain, or set the group free to choose another one.
func (t topologyPlacements) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}, QueueingHintFn: t.afterNode},
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: afterOther},
	}, nil
}

// afterNode reports whether the node has become one of a domain, or of another one.
func (t topologyPlacements) afterNode(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	n, ok := newObj.(*v1.Node)
	if !ok {
		return fwk.Queue, fmt.Errorf("an event of a node has a %T", newObj)
	}
	name, ok := pods.Group(pod)
	if !ok {
		return fwk.QueueSkip, nil
	}
	group, err := t.handle.PodGroupManager().PodGroups().Get(name.Namespace, name.Name)
	if err != nil {
		return fwk.QueueSkip, nil //nolint:nilerr // without its group, the pod cannot be scheduled
	}
	domain, has := n.Labels[topologyKey(group)]
	old, ok := oldObj.(*v1.Node)
	if !has || ok && old.Labels[topologyKey(group)] == domain {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// afterOther is for events of other pods of the group.
func afterOther(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	other, ok := newObj.(*v1.Pod)
	if !ok {
		if other, ok = oldObj.(*v1.Pod); !ok {
			return fwk.Queue, fmt.Errorf("an event of a pod has a %T and a %T", oldObj, newObj)
		}
	}
	mine, ok := pods.Group(pod)
	if theirs, in := pods.Group(other); !ok || !in || mine != theirs || pod.UID == other.UID {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// podsCount prefers placements in which more pods of the group have a node.
type podsCount struct{ handle fwk.Handle }

var _ fwk.PlacementScorePlugin = podsCount{}

func newPodsCount(h fwk.Handle) (fwk.Plugin, error) { return podsCount{h}, nil }

// Name returns upstream's name.
func (podsCount) Name() string { return PodGroupPodsCount }

// ScorePlacement counts the pods that have a node or would have one. Those that have one already make differences count
// for less.
func (c podsCount) ScorePlacement(_ context.Context, _ fwk.PlacementCycleState, group fwk.PodGroupInfo,
	placed *fwk.PodGroupAssignments,
) (int64, *fwk.Status) {
	state, err := c.handle.SnapshotSharedLister().PodGroupStates().Get(group.GetNamespace(), group.GetName())
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return int64(state.ScheduledPodsCount() + len(placed.ProposedAssignments)), nil
}

// PlacementScoreExtensions returns the plugin itself.
func (c podsCount) PlacementScoreExtensions() fwk.PlacementScoreExtensions { return c }

// NormalizePlacementScore gives the most pods the highest score.
func (podsCount) NormalizePlacementScore(_ context.Context, _ fwk.PodGroupCycleState, _ fwk.PodGroupInfo,
	scores []fwk.PlacementScore,
) *fwk.Status {
	most := int64(1)
	for _, s := range scores {
		most = max(most, s.Score)
	}
	for i := range scores {
		scores[i].Score = scores[i].Score * fwk.MaxScore / most
	}
	return nil
}
