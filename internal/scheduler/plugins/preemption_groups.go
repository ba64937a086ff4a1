package plugins

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/groups"
)

// PodGroupPostFilter makes room for a gang that does not fit, on all nodes at once (KEP-5710): as unimportant pods as
// possible end, and none of them unless the whole gang fits then. Pods of a basic group are on their own (PostFilter); if
// that finds room for none of them, it is made for any of them here.
func (d *DefaultPreemption) PodGroupPostFilter(ctx context.Context, _ fwk.PodGroupCycleState, info fwk.PodGroupInfo,
	schedule fwk.PodGroupSchedulingFunc,
) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	group := info.GetPodGroup()
	if group == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	preemptionAttempts.Inc()
	r, st := d.findGroupRoom(ctx, group, info.GetUnscheduledPods(), schedule)
	if st.Message() == "" { // there was room after all
		return r, st
	}
	return r, fwk.NewStatus(st.Code(), "pod group preemption: "+st.Message())
}

func (d *DefaultPreemption) findGroupRoom(ctx context.Context, group *schedulingv1beta1.PodGroup, pods []*v1.Pod,
	schedule fwk.PodGroupSchedulingFunc,
) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	by := preemptor{group, "podgroup", group.UID, ptr.Deref(group.Spec.Priority, 0), pods, sets.New[string]()}
	if why := d.groupNotEligible(by); why != "" {
		return nil, fwk.NewStatus(fwk.Unschedulable, why)
	}
	nodes, err := d.h.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	budgets, err := d.listBudgets()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	t := &trial{h: d.h, snapshot: d.h.MutableSnapshotSharedLister(), victims: d.lower(nodes, by.priority)}
	if len(t.victims) == 0 {
		return nominateGroup(pods, nil), fwk.NewStatus(fwk.Unschedulable, "No preemption victims found for incoming preemptor")
	}
	// The least important ones go first, and those that budgets protect last.
	slices.SortStableFunc(t.victims, func(a, b victim) int { return compareVictims(b, a) })
	protected, free := split(t.victims, budgets)
	t.victims = append(free, protected...)
	assigned, victims, st := t.run(ctx, schedule)
	if !st.IsSuccess() {
		return nominateGroup(pods, nil), st
	}
	for _, a := range assigned {
		by.nodes.Insert(a.GetNodeName())
	}
	if len(victims) == 0 { // there was room after all
		d.activate(klog.FromContext(ctx), pods...)
		return nominateGroup(pods, assigned), nil
	}
	d.start(ctx, by, podsOf(victims))
	return nominateGroup(pods, assigned), fwk.NewStatus(fwk.Success, fmt.Sprintf("found a placement for podgroup, preempting %d victims", len(podsOf(victims))))
}

// nominateGroup nominates the pods for what they are assigned to, and the others for no node any more.
func nominateGroup(pods []*v1.Pod, assigned []fwk.ProposedAssignment) *fwk.PodGroupPostFilterResult {
	out := map[types.NamespacedName]*fwk.NominatingInfo{}
	for _, p := range pods {
		out[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = nominate("").NominatingInfo
	}
	for _, a := range assigned {
		out[types.NamespacedName{Namespace: a.GetPod().Namespace, Name: a.GetPod().Name}] = nominate(a.GetNodeName()).NominatingInfo
	}
	return &fwk.PodGroupPostFilterResult{NominatingInfos: out}
}

// groupNotEligible returns why the group must not preempt others, or "".
func (d *DefaultPreemption) groupNotEligible(by preemptor) string {
	if slices.ContainsFunc(by.pods, func(p *v1.Pod) bool { return framework.PreemptionPolicy(p) == v1.PreemptNever }) {
		return "not eligible due to preemptionPolicy=Never." // the group's is the same (Scheduler.alike)
	}
	for _, p := range by.pods {
		n, err := d.h.SnapshotSharedLister().NodeInfos().Get(p.Status.NominatedNodeName)
		if err == nil && d.emptying(n, p, by.priority) {
			return emptying
		}
	}
	return ""
}

// tellGroups tells the groups among the victims that they are disrupted as a whole.
func (d *DefaultPreemption) tellGroups(ctx context.Context, by preemptor, victims []*v1.Pod) error {
	told := sets.New[types.UID]()
	for _, v := range victims {
		group := groups.Of(d.h.PodGroupManager().PodGroups(), v)
		if group == nil || !wholly(group) || told.Has(group.UID) {
			continue
		}
		told.Insert(group.UID)
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": group.UID},
			"status": map[string]any{"conditions": []metav1.Condition{{
				Type: schedulingv1beta1.DisruptionTarget, Status: metav1.ConditionTrue,
				Reason: schedulingv1beta1.PodGroupReasonPreemptionByScheduler, Message: by.message(),
				ObservedGeneration: group.Generation, LastTransitionTime: metav1.Now(),
			}}},
		})
		if err != nil {
			return err
		}
		_, err = d.h.ClientSet().SchedulingV1beta1().PodGroups(group.Namespace).Patch(
			ctx, group.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("tell pod group %s/%s that it is preempted: %w", group.Namespace, group.Name, err)
		}
	}
	return nil
}

// trial finds out on the snapshot without whom a gang fits.
type trial struct {
	h        fwk.Handle
	snapshot fwk.MutableSnapshotSharedLister
	victims  []victim // in the order in which they go
	gone     int      // so many of them are gone
	local    bool     // no pod of the gang, where it is assigned, looks at other nodes than its own
}

// run returns where the gang's pods fit, and who must go for that.
func (t *trial) run(ctx context.Context, schedule fwk.PodGroupSchedulingFunc) (
	assigned []fwk.ProposedAssignment, victims []victim, st *fwk.Status,
) {
	if err := t.snapshot.StartMutations(); err != nil {
		return nil, nil, fwk.AsStatus(err)
	}
	defer func() {
		if err := t.snapshot.EndMutations(); err != nil {
			st = fwk.AsStatus(errors.Join(st.AsError(), err))
		}
	}()
	found, st := t.least(ctx, schedule)
	if !st.IsSuccess() {
		return nil, nil, st
	}
	victims, err := t.spare(ctx, found.ProposedAssignments)
	return found.ProposedAssignments, victims, fwk.AsStatus(err)
}

// searchTime is how long least searches at most.
const searchTime = time.Second

// least searches how many victims must go at least, and leaves the snapshot without them.
func (t *trial) least(ctx context.Context, schedule fwk.PodGroupSchedulingFunc) (*fwk.PodGroupAssignments, *fwk.Status) {
	without := func(n int) (*fwk.PodGroupAssignments, *fwk.Status) {
		if err := t.remove(ctx, n); err != nil {
			return nil, fwk.AsStatus(err)
		}
		return schedule(ctx)
	}
	few, many := 0, len(t.victims) // not enough, and enough
	began := time.Now()
	found, st := without(many)
	if !st.IsSuccess() {
		return nil, st
	}
	// Extenders are asked by HTTP, and other pods wait meanwhile: then those that need not go come back at the end only.
	for few+1 < many && len(t.h.Extenders()) == 0 && time.Since(began) < searchTime {
		half := (few + many) / 2
		fits, st := without(half)
		switch {
		case st.IsSuccess():
			many, found = half, fits
		case st.IsRejected():
			few = half
		default:
			return nil, st
		}
	}
	return found, fwk.AsStatus(t.remove(ctx, many))
}

// remove takes the first n victims out of the snapshot, and puts the others in.
func (t *trial) remove(ctx context.Context, n int) error {
	for t.gone < n {
		if err := t.out(ctx, t.victims[t.gone]); err != nil {
			return err
		}
		t.gone++
	}
	for t.gone > n {
		if err := t.in(t.victims[t.gone-1]); err != nil {
			return err
		}
		t.gone--
	}
	return nil
}

func (t *trial) out(ctx context.Context, v victim) error {
	for _, p := range v.pods {
		if err := t.snapshot.RemovePod(klog.FromContext(ctx), p.GetPod(), p.GetPod().Spec.NodeName); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) in(v victim) error {
	for _, p := range v.pods {
		if err := t.snapshot.AddPod(p, p.GetPod().Spec.NodeName); err != nil {
			return err
		}
	}
	return nil
}

// spare lets victims come back beside the gang where it is assigned: those that a budget protects first, and the more
// important ones before the others. It returns those that cannot.
func (t *trial) spare(ctx context.Context, assigned []fwk.ProposedAssignment) ([]victim, error) {
	t.local = !slices.ContainsFunc(assigned, func(a fwk.ProposedAssignment) bool {
		c, ok := a.GetCycleState().(*framework.CycleState)
		return !ok || !c.OnlyItsNode()
	})
	var victims []victim
	for _, v := range slices.Backward(t.victims[:t.gone]) {
		fits, err := t.fits(ctx, v, assigned)
		if err != nil {
			return nil, err
		}
		if !fits {
			victims = append(victims, v)
		}
	}
	return victims, nil
}

// fits puts a victim back, and reports whether the gang still fits then. If it does not, the victim goes again.
func (t *trial) fits(ctx context.Context, v victim, assigned []fwk.ProposedAssignment) (fits bool, err error) {
	if err := t.in(v); err != nil {
		return false, err
	}
	if err := t.tell(ctx, v, assigned, t.h.RunPreFilterExtensionAddPod); err != nil {
		return false, err
	}
	fits, err = t.beside(ctx, t.concerned(v, assigned))
	if fits || err != nil {
		return fits, err
	}
	return false, cmp.Or(t.out(ctx, v), t.tell(ctx, v, assigned, t.h.RunPreFilterExtensionRemovePod))
}

// tell tells the state of the gang's pods that a victim has come or gone.
func (t *trial) tell(ctx context.Context, v victim, assigned []fwk.ProposedAssignment,
	what func(context.Context, fwk.CycleState, *v1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status,
) error {
	if t.local {
		return nil
	}
	for _, p := range v.pods {
		n, err := t.snapshot.NodeInfos().Get(p.GetPod().Spec.NodeName)
		if err != nil {
			return err
		}
		for _, a := range assigned {
			if st := what(ctx, a.GetCycleState(), a.GetPod(), p, n); !st.IsSuccess() {
				return st.AsError()
			}
		}
	}
	return nil
}

// concerned returns the assignments for which it matters whether the victim is there: those to its nodes, if none of
// the pods looks at other nodes than its own.
func (t *trial) concerned(v victim, assigned []fwk.ProposedAssignment) []fwk.ProposedAssignment {
	if !t.local {
		return assigned
	}
	var out []fwk.ProposedAssignment
	for _, a := range assigned {
		if slices.ContainsFunc(v.pods, func(p fwk.PodInfo) bool { return p.GetPod().Spec.NodeName == a.GetNodeName() }) {
			out = append(out, a)
		}
	}
	return out
}

// beside reports whether the pods pass the filters on their nodes, each beside those before it, as when they were
// assigned.
func (t *trial) beside(ctx context.Context, assigned []fwk.ProposedAssignment) (fits bool, err error) {
	for i, a := range assigned {
		n, err := t.snapshot.NodeInfos().Get(a.GetNodeName())
		if err != nil {
			return false, err
		}
		st := t.h.RunFilterPluginsWithNominatedPods(ctx, a.GetCycleState(), a.GetPod(), n)
		if !st.IsSuccess() && !st.IsRejected() {
			return false, st.AsError()
		}
		if !st.IsSuccess() || i == len(assigned)-1 {
			return st.IsSuccess(), nil
		}
		if err := t.snapshot.AddPod(a.GetPodInfo(), a.GetNodeName()); err != nil {
			return false, err
		}
		defer func() {
			err = cmp.Or(err, t.snapshot.RemovePod(klog.FromContext(ctx), a.GetPod(), a.GetNodeName()))
		}()
	}
	return true, nil
}
