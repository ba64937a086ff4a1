package scheduler

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// makeGroupRoom asks PodGroupPostFilter plugins, after no pod of a group could be placed, or too few of a gang. It notes
// for each pod what becomes of its nomination, and returns what they say of it.
func (s *Scheduler) makeGroupRoom(ctx context.Context, g *groupCycle) string {
	if g.group == nil {
		return ""
	}
	s.cache.Update(s.snapshot)
	profile := g.attempts[0].profile
	began := time.Now()
	rehearse := func(ctx context.Context) (*fwk.PodGroupAssignments, *fwk.Status) { return s.rehearse(ctx, g) }
	r, st := profile.PodGroupPostFilter(ctx, g.state, g.info(), rehearse)
	framework.ObservePoint("PodGroupPostFilter", profile.Name, st.Code(), time.Since(began))
	for _, m := range g.attempts {
		if r == nil {
			break
		}
		if n, ok := r.NominatingInfos[types.NamespacedName{Namespace: m.pod().Namespace, Name: m.pod().Name}]; ok {
			m.nominated = n
		}
	}
	if !st.IsSuccess() && !st.IsRejected() {
		klog.FromContext(ctx).Error(st.AsError(), "Cannot find out whether room can be made for the pod group")
		for _, m := range g.attempts {
			if fit, ok := m.err.(*fitError); ok { //nolint:errorlint // it is this attempt's own
				fit.roomUnknown = true
			}
		}
	}
	return st.Message()
}

// rehearsal is what came of looking for nodes for the pods of a group.
type rehearsal struct {
	*fwk.PodGroupAssignments
	state  *framework.CycleState // of the placement
	status *fwk.Status
}

// rehearse looks for nodes for the pods of a group that have none, as its cycle does, but only on the snapshot, with
// what has been changed there. Afterwards the snapshot is as before.
func (s *Scheduler) rehearse(ctx context.Context, g *groupCycle) (*fwk.PodGroupAssignments, *fwk.Status) {
	placements, _, st := g.attempts[0].profile.Placements(ctx, g.state, g.info(), s.snapshot.Nodes())
	if !st.IsSuccess() {
		return nil, st
	}
	best := s.best(ctx, g, placements)
	return best.PodGroupAssignments, best.status
}

// best rehearses all placements, or that on all nodes if there are none, and returns the best one in which the group
// fits. If it fits in none, it returns the first one, with a status for all of them.
func (s *Scheduler) best(ctx context.Context, g *groupCycle, placements []*fwk.Placement) *rehearsal {
	if s.snapshot.StartMutations() == nil { // else a plugin has, and ends them
		defer func() { _ = s.snapshot.EndMutations() }()
	}
	for _, m := range g.attempts { // what room was made for earlier does not matter to the others of the group
		s.queue.Nominator().DeleteNominatedPodIfExists(m.info.GetPod())
	}
	if len(placements) == 0 {
		return s.try(ctx, g, nil)
	}
	var first *rehearsal
	var fit []*rehearsal
	for _, p := range placements {
		if err := s.snapshot.AssumePlacement(p); err != nil {
			return &rehearsal{status: fwk.AsStatus(err)}
		}
		r := s.try(ctx, g, p)
		s.snapshot.ForgetPlacement()
		switch {
		case r.status.IsSuccess():
			fit = append(fit, r)
		case !r.status.IsRejected():
			return r
		}
		if first == nil {
			first = r
		}
	}
	switch len(fit) {
	case 0:
		why := fmt.Sprintf("0/%d placements are available, first placement status: %s", len(placements), first.status.Message())
		first.status = fwk.NewStatus(fwk.Unschedulable, why)
		return first
	case 1:
		return fit[0]
	}
	states, assigned := make([]fwk.PlacementCycleState, len(fit)), make([]*fwk.PodGroupAssignments, len(fit))
	for i, r := range fit {
		states[i], assigned[i] = r.state, r.PodGroupAssignments
	}
	i, st := g.attempts[0].profile.BestPlacement(ctx, states, g.info(), assigned)
	if !st.IsSuccess() {
		return &rehearsal{status: st}
	}
	return fit[i]
}

// try rehearses one placement, to which the snapshot is narrowed; nil is all nodes.
func (s *Scheduler) try(ctx context.Context, g *groupCycle, placement *fwk.Placement) *rehearsal {
	trial := &groupCycle{group: g.group, state: framework.NewGroupCycle()}
	r := &rehearsal{PodGroupAssignments: &fwk.PodGroupAssignments{Placement: placement}}
	if placement != nil {
		r.state = framework.NewCycleState(nil)
		r.state.InGroup(trial.state)
	}
	var why error
	wanted := 1
	if g.gang() {
		wanted = max(1, s.missing(g))
	}
	for i, m := range g.attempts {
		if len(r.ProposedAssignments)+len(g.attempts)-i < wanted {
			break // whatever becomes of the others
		}
		a := &attempt{
			profile: m.profile, info: m.info, state: framework.NewCycleState(m.info.PodInfo), start: time.Now(),
			group: trial, rehearsal: true,
		}
		a.state.InGroup(trial.state)
		a.state.InPlacement(r.state)
		leave, err := s.pretend(m.ctx, a) //nolint:contextcheck // gather made it of ctx
		if ctx.Err() != nil {
			return &rehearsal{status: fwk.AsStatus(context.Cause(ctx))}
		}
		if err != nil {
			if u, p := rejectedBy(err); u.Len()+p.Len() == 0 {
				return &rehearsal{status: fwk.AsStatus(err)}
			}
			if why == nil {
				why = err
			}
			continue
		}
		defer leave()
		r.ProposedAssignments = append(r.ProposedAssignments, proposal{a})
	}
	if len(r.ProposedAssignments) < wanted {
		few := fmt.Sprintf("fewer than %d pod(s) of %d could be scheduled: %v", wanted, len(g.attempts), why)
		r.status = fwk.NewStatus(fwk.Unschedulable, few)
	}
	return r
}

// pretend finds the pod's node in the snapshot and puts the pod there, until leave is called.
func (s *Scheduler) pretend(ctx context.Context, a *attempt) (leave func(), err error) {
	if err := s.choose(ctx, a); err != nil {
		return nil, err
	}
	assumed := a.info.On(a.node)
	if err := s.snapshot.AddPod(assumed, a.node); err != nil {
		return nil, err
	}
	a.assumed = assumed
	leave = func() {
		a.profile.RunReservePluginsUnreserve(ctx, a.state, a.pod(), a.node)
		if err := s.snapshot.RemovePod(klog.FromContext(ctx), a.pod(), a.node); err != nil {
			klog.FromContext(ctx).Error(err, "The scheduler's snapshot is inconsistent")
		}
	}
	if st := a.profile.RunReservePluginsReserve(ctx, a.state, a.pod(), a.node); !st.IsSuccess() {
		leave()
		return nil, statusError(st, a.node)
	}
	return leave, nil
}

// proposal is an attempt that has found a node, as plugins see it.
type proposal struct{ *attempt }

var _ fwk.ProposedAssignment = proposal{}

func (p proposal) GetPod() *v1.Pod               { return p.info.GetPod() }
func (p proposal) GetPodInfo() fwk.PodInfo       { return p.assumed }
func (p proposal) GetNodeName() string           { return p.node }
func (p proposal) GetCycleState() fwk.CycleState { return p.state }

// groupInfo is a group with its pods that are looked at, as plugins see it.
type groupInfo struct{ *groupCycle }

var _ fwk.PodGroupInfo = groupInfo{}

func (g *groupCycle) info() fwk.PodGroupInfo { return groupInfo{g} }

func (g groupInfo) GetUnscheduledPods() []*v1.Pod {
	out := make([]*v1.Pod, len(g.attempts))
	for i, m := range g.attempts {
		out[i] = m.info.GetPod()
	}
	return out
}

func (g groupInfo) GetName() string      { return g.group.Name }
func (g groupInfo) GetNamespace() string { return g.group.Namespace }
func (groupInfo) GetType() fwk.EntityKeyType {
	return fwk.PodGroupKeyType
}
func (g groupInfo) GetKey() string { return g.group.Namespace + "/" + g.group.Name }

func (g groupInfo) GetPodGroup() *schedulingv1beta1.PodGroup                  { return g.group }
func (groupInfo) GetCompositePodGroup() *schedulingv1alpha3.CompositePodGroup { return nil }
func (groupInfo) GetChildren() []fwk.PodGroupInfo                             { return nil }
