package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// NodeResourcesFit keeps nodes from being overcommitted, and spreads pods to where most is left
// (LeastAllocated).
type NodeResourcesFit struct{}

const fitKey fwk.StateKey = "NodeResourcesFit"

// fitState holds the pod's requests, computed once for all nodes.
type fitState struct{ fwk.PodResource }

// Clone returns the state itself, because it does not change.
func (s fitState) Clone() fwk.StateData { return s }

// Name returns upstream's name.
func (NodeResourcesFit) Name() string { return "NodeResourcesFit" }

// PreFilter computes the pod's requests.
func (NodeResourcesFit) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	state.Write(fitKey, fitState{info.CalculateResource()})
	return nil, nil
}

// PreFilterExtensions returns nil: Filter looks at the node itself.
func (NodeResourcesFit) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func podRequests(state fwk.CycleState) (fitState, *fwk.Status) {
	data, err := state.Read(fitKey)
	if err != nil {
		return fitState{}, fwk.AsStatus(err)
	}
	s, ok := data.(fitState)
	if !ok {
		return fitState{}, fwk.NewStatus(fwk.Error, "NodeResourcesFit: unexpected type of cycle state")
	}
	return s, nil
}

// Filter names every resource that is short. If the node could never provide it, the pod is
// unresolvable there: removing other pods would not help.
func (NodeResourcesFit) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	want, st := podRequests(state)
	if !st.IsSuccess() {
		return st
	}
	var reasons []string
	never := false
	check := func(name v1.ResourceName, ask, used, has int64) {
		if ask > 0 && ask > has-used {
			reasons = append(reasons, "Insufficient "+string(name))
			never = never || ask > has
		}
	}
	has, used := n.GetAllocatable(), n.GetRequested()
	if len(n.GetPods())+1 > has.GetAllowedPodNumber() {
		reasons = append(reasons, "Too many pods")
	}
	check(v1.ResourceCPU, want.Resource.GetMilliCPU(), used.GetMilliCPU(), has.GetMilliCPU())
	check(v1.ResourceMemory, want.Resource.GetMemory(), used.GetMemory(), has.GetMemory())
	check(v1.ResourceEphemeralStorage, want.Resource.GetEphemeralStorage(), used.GetEphemeralStorage(), has.GetEphemeralStorage())
	for name, ask := range want.Resource.GetScalarResources() {
		check(name, ask, used.GetScalarResources()[name], has.GetScalarResources()[name])
	}
	switch {
	case len(reasons) == 0:
		return nil
	case never:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasons...)
	}
	return fwk.NewStatus(fwk.Unschedulable, reasons...)
}

// EventsToRegister returns the events that free or add resources.
func (NodeResourcesFit) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(
		fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete | fwk.UpdatePodScaleDown},
		fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable},
	), nil
}

// Score returns the mean share of CPU and memory that would be left, in percent.
func (NodeResourcesFit) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	want, st := podRequests(state)
	if !st.IsSuccess() {
		return 0, st
	}
	has, used := n.GetAllocatable(), n.GetNonZeroRequested()
	cpu := share(has.GetMilliCPU(), used.GetMilliCPU()+want.Non0CPU)
	memory := share(has.GetMemory(), used.GetMemory()+want.Non0Mem)
	return (cpu + memory) / 2, nil
}

func share(has, asked int64) int64 {
	if has == 0 || asked > has {
		return 0
	}
	return (has - asked) * fwk.MaxScore / has
}

// ScoreExtensions returns nil: the score is on the right scale already.
func (NodeResourcesFit) ScoreExtensions() fwk.ScoreExtensions { return nil }
