package plugins

import (
	"context"
	"math"

	v1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// NodeResourcesBalancedAllocation prefers nodes whose resources the pod makes equally used, so that
// none of them runs out while there is much left of another.
type NodeResourcesBalancedAllocation struct{ allocation }

func newBalancedAllocation(_ context.Context, args *configv1.NodeResourcesBalancedAllocationArgs, h fwk.Handle) (fwk.Plugin, error) {
	resources, err := weighted(args.Resources)
	return NodeResourcesBalancedAllocation{allocation{resources: resources, handle: h}}, err
}

// Name returns upstream's name.
func (NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// PreScore skips pods that ask for nothing: they would all go to the node that is most in balance.
func (b NodeResourcesBalancedAllocation) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	info, err := framework.InfoOf(state, pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	for _, r := range b.resources {
		if ask, _, _ := b.of(ctx, r.name, info.CalculateResource(), nodes[0], state); ask > 0 {
			return fwk.AsStatus(b.countDevices(state, info.CalculateResource()))
		}
	}
	return fwk.NewStatus(fwk.Skip)
}

// Score compares the balance with and without the pod: 75 if it stays as it is, more if it improves
// (kubernetes#129138).
func (b NodeResourcesBalancedAllocation) Score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	info, err := framework.InfoOf(state, pod)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	var room [2][4]float64 // enough for most, without an allocation for each node
	with, without := room[0][:0], room[1][:0]
	for _, r := range b.resources {
		ask, used, has := b.of(ctx, r.name, info.CalculateResource(), n, state)
		if has == 0 {
			continue
		}
		with = append(with, min(1, float64(used+ask)/float64(has)))
		without = append(without, min(1, float64(used)/float64(has)))
	}
	const half = fwk.MaxScore / 2
	return half + (half+balance(with)-balance(without))/2, nil
}

// balance returns 100 for equal shares, and less by their standard deviation.
func balance(shares []float64) int64 {
	const all = float64(fwk.MaxScore)
	switch len(shares) {
	case 0, 1:
		return fwk.MaxScore
	case 2: // as upstream has it: the sum of squares is rounded otherwise
		return int64((1 - math.Abs(shares[0]-shares[1])/2) * all)
	}
	var sum, squares float64
	for _, s := range shares {
		sum += s
	}
	mean := sum / float64(len(shares))
	for _, s := range shares {
		squares += (s - mean) * (s - mean)
	}
	return int64((1 - math.Sqrt(squares/float64(len(shares)))) * all)
}

// ScoreExtensions returns nil: the score is on the right scale already.
func (NodeResourcesBalancedAllocation) ScoreExtensions() fwk.ScoreExtensions { return nil }
