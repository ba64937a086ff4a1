package framework

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// GroupCycle carries what plugins remember during one attempt to schedule a pod group.
type GroupCycle struct{ *CycleState }

var _ fwk.PodGroupCycleState = GroupCycle{}

// NewGroupCycle returns the empty state of an attempt to schedule a pod group.
func NewGroupCycle() *GroupCycle { return &GroupCycle{NewCycleState(nil)} }

// GetParentPlacementCycleState returns nil: there are no groups of groups.
func (GroupCycle) GetParentPlacementCycleState() fwk.PlacementCycleState { return nil }

// PodGroupPostFilter asks the plugins how room could be made for a pod group that does not fit. The first one that
// knows a way decides. schedule looks for nodes for the group on the snapshot, in which they may have changed something.
func (p *Profile) PodGroupPostFilter(ctx context.Context, state fwk.PodGroupCycleState, group fwk.PodGroupInfo,
	schedule fwk.PodGroupSchedulingFunc,
) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	var reasons []string
	var result *fwk.PodGroupPostFilterResult
	for _, pl := range p.podGroupPostFilter {
		r, st := pl.PodGroupPostFilter(ctx, state, group, schedule)
		if p.shared.Snapshot.EndMutations() == nil {
			st = fwk.AsStatus(errors.New("it has left the scheduler's snapshot changed; that was taken back"))
		}
		switch {
		case st.IsSuccess(), st.Code() == fwk.UnschedulableAndUnresolvable:
			return r, named(st, pl)
		case !st.IsRejected():
			return nil, named(fwk.AsStatus(fmt.Errorf("running PodGroupPostFilter plugin %q: %w", pl.Name(), st.AsError())), pl)
		}
		if r != nil {
			result = r
		}
		reasons = append(reasons, st.Reasons()...)
	}
	return result, fwk.NewStatus(fwk.Unschedulable, reasons...)
}

type placementScorer struct {
	fwk.PlacementScorePlugin
	weight int64
	*meter
}

// Placements returns the sets of nodes among which a pod group's is to be chosen: nil if it may be on all nodes, which
// are given. by is the plugin that says so.
func (p *Profile) Placements(ctx context.Context, state fwk.PodGroupCycleState, group fwk.PodGroupInfo, nodes []fwk.NodeInfo) (
	placements []*fwk.Placement, by string, st *fwk.Status,
) {
	if len(p.placementGenerate) == 0 {
		return nil, "", nil
	}
	began := time.Now()
	defer func() { ObservePoint("PlacementGenerate", p.Name, st.Code(), time.Since(began)) }()
	pl, all := p.placementGenerate[0], &fwk.Placement{Nodes: nodes}
	r, st := pl.GeneratePlacements(ctx, state, group, all)
	switch {
	case !st.IsSuccess():
		return nil, pl.Name(), named(st, pl)
	case r == nil || len(r.Placements) == 0:
		return nil, pl.Name(), named(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "no feasible placements found"), pl)
	case len(r.Placements) == 1 && r.Placements[0] == all:
		return nil, pl.Name(), nil
	}
	return r.Placements, pl.Name(), nil
}

// BestPlacement returns the index of the placement with the highest score, the first one of several. states are those of
// the placements.
func (p *Profile) BestPlacement(ctx context.Context, states []fwk.PlacementCycleState, group fwk.PodGroupInfo,
	placements []*fwk.PodGroupAssignments,
) (best int, st *fwk.Status) {
	began := time.Now()
	defer func() { ObservePoint("PlacementScore", p.Name, st.Code(), time.Since(began)) }()
	totals := make([]int64, len(placements))
	for _, pl := range p.placementScore {
		scores := make([]fwk.PlacementScore, len(placements))
		for i, placed := range placements {
			began := pl.Begin()
			score, st := pl.ScorePlacement(ctx, states[i], group, placed)
			pl.end(began, st)
			if !st.IsSuccess() {
				return 0, fwk.AsStatus(fmt.Errorf("running PlacementScore plugin %q: %w", pl.Name(), st.AsError()))
			}
			scores[i] = fwk.PlacementScore{Placement: placed.Placement, Score: score}
		}
		if ext := pl.PlacementScoreExtensions(); ext != nil {
			if st := ext.NormalizePlacementScore(ctx, states[0].GetPodGroupSchedulingCycle(), group, scores); !st.IsSuccess() {
				return 0, fwk.AsStatus(fmt.Errorf("running NormalizePlacementScore of plugin %q: %w", pl.Name(), st.AsError()))
			}
		}
		for i, s := range scores {
			if s.Score < fwk.MinScore || s.Score > fwk.MaxScore {
				return 0, fwk.AsStatus(fmt.Errorf("plugin %q returns an invalid placement score %d, it should be in the range of [%d, %d] after normalizing",
					pl.Name(), s.Score, fwk.MinScore, fwk.MaxScore))
			}
			totals[i] += s.Score * pl.weight
		}
	}
	log := klog.FromContext(ctx).V(10)
	for i, total := range totals {
		if log.Enabled() {
			log.Info("Calculated placement's final score for podGroup", "placement", placements[i].Name, "score", total)
		}
		if total > totals[best] {
			best = i
		}
	}
	return best, nil
}
