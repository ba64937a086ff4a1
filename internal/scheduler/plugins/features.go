package plugins

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	baseversion "k8s.io/component-base/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// NodeDeclaredFeatures keeps a pod off nodes whose kubelets lack what it needs (KEP-5328).
type NodeDeclaredFeatures struct{}

// apiVersion is the version of the API, by which the library knows which features every node has.
var apiVersion = version.MustParse(baseversion.DefaultKubeBinaryVersion)

const featuresKey fwk.StateKey = "NodeDeclaredFeatures"

// featuresState has what the pod needs, computed once for all nodes.
type featuresState struct{ ndf.FeatureSet }

// Clone returns the state itself, because it does not change.
func (s featuresState) Clone() fwk.StateData { return s }

// Name returns upstream's name.
func (NodeDeclaredFeatures) Name() string { return "NodeDeclaredFeatures" }

// PreFilter skips pods that need nothing special.
func (NodeDeclaredFeatures) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod,
	_ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	needs, err := ndf.DefaultFramework.InferForPodScheduling(&ndf.PodInfo{Spec: &pod.Spec}, apiVersion)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if needs.IsEmpty() {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(featuresKey, featuresState{needs})
	return nil, nil
}

// PreFilterExtensions returns nil: other pods do not matter.
func (NodeDeclaredFeatures) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter compares what the pod needs with what the node declares.
func (NodeDeclaredFeatures) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	needs, st := framework.ReadState[featuresState](state, featuresKey)
	if !st.IsSuccess() {
		return st
	}
	has, err := needs.IsSubset(n.GetNodeDeclaredFeatures())
	if err != nil {
		return fwk.AsStatus(err)
	}
	if !has {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match Pod's required features")
	}
	return nil
}

// EventsToRegister returns the events of nodes. A change of the pod itself has it retried anyway.
func (NodeDeclaredFeatures) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{
		Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeDeclaredFeature},
		QueueingHintFn: declares,
	}}, nil
}

// declares reports whether a node is new or has declared something else.
func declares(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	n, ok := newObj.(*v1.Node)
	if !ok {
		return fwk.Queue, fmt.Errorf("not a node: %T", newObj)
	}
	if old, ok := oldObj.(*v1.Node); ok && slices.Equal(old.Status.DeclaredFeatures, n.Status.DeclaredFeatures) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}
