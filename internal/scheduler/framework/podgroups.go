package framework

import (
	"context"
	"errors"
	"fmt"

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
