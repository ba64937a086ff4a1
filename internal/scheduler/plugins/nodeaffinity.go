package plugins

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

const (
	reasonAffinity      = "node(s) didn't match Pod's node affinity/selector"
	reasonAddedAffinity = "node(s) didn't match scheduler-enforced node affinity"
)

// NodeAffinity matches spec.nodeSelector and spec.affinity.nodeAffinity, and the affinity that the
// profile adds to every pod.
type NodeAffinity struct {
	added          *nodeaffinity.NodeSelector // nil: none
	addedPreferred *nodeaffinity.PreferredSchedulingTerms
}

func newNodeAffinity(_ context.Context, args *configv1.NodeAffinityArgs, _ fwk.Handle) (fwk.Plugin, error) {
	var na NodeAffinity
	a := args.AddedAffinity
	if a == nil {
		return na, nil
	}
	var err error
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		if na.added, err = nodeaffinity.NewNodeSelector(r); err != nil {
			return nil, fmt.Errorf("addedAffinity.requiredDuringSchedulingIgnoredDuringExecution: %w", err)
		}
	}
	if terms := a.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
		if na.addedPreferred, err = nodeaffinity.NewPreferredSchedulingTerms(terms); err != nil {
			return nil, fmt.Errorf("addedAffinity.preferredDuringSchedulingIgnoredDuringExecution: %w", err)
		}
	}
	return na, nil
}

// affinityState has the pod's own requirements, parsed once for all nodes.
type affinityState struct {
	required  nodeaffinity.RequiredNodeAffinity
	preferred *nodeaffinity.PreferredSchedulingTerms
}

// Clone returns the state itself, because it does not change.
func (s affinityState) Clone() fwk.StateData { return s }

const (
	affinityKey  fwk.StateKey = "NodeAffinity"
	preferredKey fwk.StateKey = "NodeAffinity/preferred"
)

// Name returns upstream's name.
func (NodeAffinity) Name() string { return "NodeAffinity" }

// PreFilter skips pods that accept any node. For pods that name their node with a field selector,
// as DaemonSet pods do, it returns only that node.
func (na NodeAffinity) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	required := requiredTerms(pod)
	if len(pod.Spec.NodeSelector) == 0 && required == nil && na.added == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(affinityKey, affinityState{required: nodeaffinity.GetRequiredNodeAffinity(pod)})
	names, ok := namedNodes(required)
	if !ok {
		return nil, nil
	}
	if len(names) == 0 {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "pod affinity terms conflict")
	}
	return &fwk.PreFilterResult{NodeNames: names}, nil
}

func requiredTerms(pod *v1.Pod) *v1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// namedNodes returns the nodes that the terms name, if every term names some.
func namedNodes(sel *v1.NodeSelector) (sets.Set[string], bool) {
	if sel == nil || len(sel.NodeSelectorTerms) == 0 {
		return nil, false
	}
	all := sets.New[string]()
	for _, t := range sel.NodeSelectorTerms {
		var names sets.Set[string]
		for _, f := range t.MatchFields {
			if f.Key != metav1.ObjectNameField || f.Operator != v1.NodeSelectorOpIn {
				continue
			}
			if s := sets.New(f.Values...); names == nil {
				names = s
			} else {
				names = names.Intersection(s)
			}
		}
		if names == nil {
			return nil, false
		}
		all = all.Union(names)
	}
	return all, true
}

// PreFilterExtensions returns nil: pods do not change a node's labels.
func (NodeAffinity) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter matches the node's labels and name.
func (na NodeAffinity) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	if na.added != nil && !na.added.Match(node(n)) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonAddedAffinity)
	}
	s, st := framework.ReadState[affinityState](state, affinityKey)
	if !st.IsSuccess() {
		return st
	}
	ok, err := s.required.Match(node(n))
	if err != nil {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if !ok {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonAffinity)
	}
	return nil
}

// EventsToRegister returns changes of labels, and new nodes, that match.
func (na NodeAffinity) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{
		Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel},
		QueueingHintFn: na.hint,
	}}, nil
}

func (na NodeAffinity) hint(_ klog.Logger, pod *v1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	n, ok := newObj.(*v1.Node)
	if !ok {
		return fwk.Queue, fmt.Errorf("not a node: %T", newObj)
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n)
	if err != nil || matches && (na.added == nil || na.added.Match(n)) {
		return fwk.Queue, err
	}
	return fwk.QueueSkip, nil
}

// PreScore skips pods that prefer nothing.
func (na NodeAffinity) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	var terms []v1.PreferredSchedulingTerm
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		terms = a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if len(terms) == 0 && na.addedPreferred == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	preferred, err := nodeaffinity.NewPreferredSchedulingTerms(terms)
	if err != nil {
		return fwk.AsStatus(err)
	}
	state.Write(preferredKey, affinityState{preferred: preferred})
	return nil
}

// Score returns the sum of the weights of the preferred terms that match.
func (na NodeAffinity) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	s, st := framework.ReadState[affinityState](state, preferredKey)
	if !st.IsSuccess() {
		return 0, st
	}
	score := s.preferred.Score(node(n))
	if na.addedPreferred != nil {
		score += na.addedPreferred.Score(node(n))
	}
	return score, nil
}

// ScoreExtensions returns the plugin itself: scores must be normalized, because weights have no
// common scale.
func (na NodeAffinity) ScoreExtensions() fwk.ScoreExtensions { return na }

// NormalizeScore gives the best match the highest score.
func (NodeAffinity) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	framework.Normalize(scores, false)
	return nil
}
