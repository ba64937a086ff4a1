package devices

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// PreScore skips pods whose open claims have no alternatives.
func (*Devices) PreScore(_ context.Context, cycle fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if s := stateOf(cycle); s == nil || !slices.ContainsFunc(s.openClaims(), hasAlternatives) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

func hasAlternatives(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool {
		return len(r.FirstAvailable) > 0
	})
}

// Score prefers nodes on which requests get what they would like best (KEP-4816).
func (*Devices) Score(_ context.Context, cycle fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	s := stateOf(cycle)
	if s == nil {
		return 0, nil
	}
	found := s.plans[info.Node().Name].allocations // nobody writes it any more
	open := s.openClaims()
	if len(found) < len(open) {
		return 0, nil
	}
	var total int64
	for i, claim := range open {
		total += preference(claim, &found[i])
	}
	return total, nil
}

// preference adds up, for each request with alternatives, how far before the last possible one the chosen one is.
func preference(claim *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) (score int64) {
	chosen := sets.New[string]()
	for i := range a.Devices.Results {
		chosen.Insert(a.Devices.Results[i].Request)
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		for j := range r.FirstAvailable {
			if chosen.Has(resourceclaim.CreateSubRequestRef(r.Name, r.FirstAvailable[j].Name)) {
				score += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - j)
			}
		}
	}
	return score
}

// ScoreExtensions returns the plugin itself.
func (d *Devices) ScoreExtensions() fwk.ScoreExtensions { return d }

// NormalizeScore gives the best node the highest score.
func (*Devices) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	framework.Normalize(scores, false)
	return nil
}
