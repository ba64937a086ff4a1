package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"
)

const reasonAffinity = "node(s) didn't match Pod's node affinity/selector"

// NodeAffinity matches spec.nodeSelector and spec.affinity.nodeAffinity.
type NodeAffinity struct{}

// Name returns upstream's name.
func (NodeAffinity) Name() string { return "NodeAffinity" }

// PreFilter skips pods that accept any node. For pods that name their node with a field selector,
// as DaemonSet pods do, it returns only that node.
func (NodeAffinity) PreFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	required := requiredTerms(pod)
	if len(pod.Spec.NodeSelector) == 0 && required == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
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
func (NodeAffinity) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node(n))
	if err != nil {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if !ok {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonAffinity)
	}
	return nil
}

// EventsToRegister returns changes of labels, and new nodes.
func (NodeAffinity) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}), nil
}

// Score returns the sum of the weights of the preferred terms that match.
func (NodeAffinity) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil {
		return 0, nil
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return terms.Score(node(n)), nil
}

// ScoreExtensions returns the plugin itself: scores must be normalized, because weights have no
// common scale.
func (na NodeAffinity) ScoreExtensions() fwk.ScoreExtensions { return na }

// NormalizeScore gives the best match the highest score.
func (NodeAffinity) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	normalize(scores, false)
	return nil
}
