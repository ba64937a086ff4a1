package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/groups"
	"wherry.dev/internal/scheduler/plugins"
)

// groupCycle is one attempt at a pod group.
type groupCycle struct {
	group    *schedulingv1beta1.PodGroup // nil if it does not exist
	state    *framework.GroupCycle
	attempts []*member
	together bool // none fits in any of the domains of which the group wants one: no pod makes room on its own
	start    time.Time
}

// member is an attempt at one pod of the group.
type member struct {
	*attempt
	ctx context.Context //nolint:containedctx // of this attempt, from the cycle to the binding
	err error           // why the pod has no node
}

// errGang says of a pod that it would have a node, but too few others of its gang have one.
var errGang = errors.New("waiting for minCount pods from a gang to be scheduled")

// gang reports whether the group is one whose pods run together or not at all.
func (g *groupCycle) gang() bool { return g.group != nil && plugins.MinCount(g.group) > 0 }

// scheduleGroup takes the pods of a group to their nodes, all those that wait in one cycle: each is assumed on its
// node before the next one is looked at. If too few of a gang find a node, none of them keeps it.
func (s *Scheduler) scheduleGroup(ctx context.Context, first *framework.QueuedPodInfo, name types.NamespacedName) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("podGroup", name))
	g := s.gather(ctx, first, name)
	err := s.groupCycle(ctx, g)
	podGroupAlgorithm.Observe(time.Since(g.start).Seconds())
	for _, m := range g.attempts {
		m.state.InGroup(nil)
		m.state.InPlacement(nil)
		m.group = nil
		if m.err != nil {
			s.fail(m.ctx, m.attempt, m.err) //nolint:contextcheck // gather made it of ctx
			continue
		}
		s.startBinding(m.ctx, m.attempt) //nolint:contextcheck // gather made it of ctx
	}
	s.reportGroup(ctx, g, err)
	s.releaseRoom(ctx, g.attempts[0].info.GetPod()) // pods of the group may have gone meanwhile
}

// releaseRoom gives up the room that was made for a pod's gang if too few of its pods are left, so that others can have
// it.
func (s *Scheduler) releaseRoom(ctx context.Context, pod *v1.Pod) {
	group := groups.Of(s.groups.PodGroups(), pod)
	if group == nil {
		return
	}
	state, err := s.groups.PodGroupStates().Get(group.Namespace, group.Name)
	if err != nil || state.AllPodsCount() >= plugins.MinCount(group) {
		return
	}
	for _, p := range state.UnscheduledPods() {
		node := s.queue.Nominator().NodeOf(p.UID)
		if node == "" || s.profiles[p.Spec.SchedulerName] == nil {
			continue
		}
		s.queue.Nominator().DeleteNominatedPodIfExists(p)
		s.statuses.put(ctx, p.UID, &statusUpdate{
			profile: s.profiles[p.Spec.SchedulerName], pod: p, reason: v1.PodReasonUnschedulable,
			message: s.preEnqueue(ctx, p).Message(), nominated: &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride},
		})
		s.freed(ctx, p, node)
	}
}

// gather pops the other pods of the group that wait, wherever they do.
func (s *Scheduler) gather(ctx context.Context, first *framework.QueuedPodInfo, name types.NamespacedName) *groupCycle {
	g := &groupCycle{state: framework.NewGroupCycle(), start: time.Now()}
	infos := []*framework.QueuedPodInfo{first}
	if group, err := s.groups.PodGroups().Get(name.Namespace, name.Name); err == nil {
		g.group = group
	}
	if pods, err := s.groups.PodGroupStates().Get(name.Namespace, name.Name); err == nil {
		infos = append(infos, s.queue.Take(ctx, pods.UnscheduledPods())...)
	}
	slices.SortFunc(infos, func(a, b *framework.QueuedPodInfo) int {
		switch {
		case s.less(a, b):
			return -1
		case s.less(b, a):
			return 1
		}
		return strings.Compare(a.GetPod().Name, b.GetPod().Name)
	})
	for _, info := range infos {
		ctx, a := s.attempt(ctx, info)
		a.group = g
		a.state.InGroup(g.state)
		g.attempts = append(g.attempts, &member{attempt: a, ctx: ctx})
	}
	return g
}

// groupCycle finds nodes for the pods of a group, and assumes them there. It returns why none of a basic group, or too
// few of a gang have one; then every pod has an error of its own.
func (s *Scheduler) groupCycle(ctx context.Context, g *groupCycle) error {
	s.cycle.Lock()
	defer s.cycle.Unlock()
	if err := s.alike(g); err != nil {
		return g.failAll(err)
	}
	defer s.snapshot.ForgetPlacement()
	where, err := s.narrow(ctx, g)
	if err != nil {
		return g.failAll(err)
	}
	for _, m := range g.attempts {
		m.err = s.schedulingCycle(m.ctx, m.attempt) //nolint:contextcheck // gather made it of ctx
	}
	s.snapshot.ForgetPlacement()
	g.blame(where.by)
	switch {
	case g.placed() > 0 && (!g.gang() || !s.lacks(g)):
		return nil
	case g.placed() == 0 && (!g.gang() || s.missing(g) <= 0):
		return s.noneOf(ctx, g, where)
	}
	why, could := errGang, g.placed()
	for _, m := range slices.Backward(g.attempts) {
		if m.err != nil {
			why = m.err // the first one's
			continue
		}
		s.shared.Waiting.Remove(m.pod().UID)
		s.undo(ctx, m.attempt)
		m.assumed, m.err = nil, errGang
	}
	for _, m := range g.attempts {
		// What helps one of them helps all, and brings them along.
		if fit, ok := errors.AsType[*fitError](m.err); ok {
			fit.plugins.Insert(plugins.GangScheduling)
			fit.roomUnknown = false
		}
	}
	least := plugins.MinCount(g.group)
	err = fmt.Errorf("%d pod(s) of %d could be scheduled, minCount is %d: %w", could, len(g.attempts), least, why)
	if where.of > 1 {
		err = fmt.Errorf("0/%d placements are available, first placement status: %w", where.of, err)
	}
	if note := s.makeGroupRoom(ctx, g); note != "" {
		err = fmt.Errorf("%w %s", err, note)
	}
	return err
}

// noneOf makes room for the pods of a group that are on their own, those of a basic one, or of a gang of which enough
// run, if none of them has a node and none has made room for itself. It returns why that is.
func (s *Scheduler) noneOf(ctx context.Context, g *groupCycle, where narrowed) error {
	for _, m := range g.attempts {
		if fit, ok := errors.AsType[*fitError](m.err); ok && g.together {
			fit.roomUnknown = false
		}
	}
	err := fmt.Errorf("0 pod(s) of %d could be scheduled: %w", len(g.attempts), g.attempts[0].err)
	if where.of > 1 {
		err = fmt.Errorf("0/%d placements are available, first placement status: %w", where.of, err)
	}
	if g.nominated() {
		return err
	}
	if note := s.makeGroupRoom(ctx, g); note != "" {
		err = fmt.Errorf("%w %s", err, note)
	}
	return err
}

// narrowed is to which placement a snapshot was narrowed for a group: one of several that a plugin has made, or to none.
type narrowed struct {
	by string
	of int
}

// narrow looks for the best placement for the group, if a plugin does not let it have all nodes, and narrows the snapshot
// to that. If the group fits in none, it is the first one.
func (s *Scheduler) narrow(ctx context.Context, g *groupCycle) (narrowed, error) {
	if !s.placing || g.group == nil {
		return narrowed{}, nil
	}
	s.cache.Update(s.snapshot)
	placements, by, st := g.attempts[0].profile.Placements(ctx, g.state, g.info(), s.snapshot.Nodes())
	if !st.IsSuccess() {
		if !st.IsRejected() {
			return narrowed{}, st.AsError()
		}
		fit := newFitError(len(s.snapshot.Nodes()))
		fit.rejectAll(st)
		return narrowed{}, fit
	}
	if len(placements) == 0 {
		return narrowed{}, nil
	}
	best := s.best(ctx, g, placements)
	if !best.status.IsSuccess() && !best.status.IsRejected() {
		return narrowed{}, best.status.AsError()
	}
	g.together = !best.status.IsSuccess()
	best.state.InGroup(g.state)
	for _, m := range g.attempts {
		m.state.InPlacement(best.state)
		for _, a := range best.ProposedAssignments {
			if a.GetPod().UID == m.pod().UID {
				m.planned = a.GetNodeName()
			}
		}
	}
	return narrowed{by, len(placements)}, s.snapshot.AssumePlacement(best.Placement)
}

// blame notes that a plugin kept the pods without a node off other nodes.
func (g *groupCycle) blame(plugin string) {
	for _, m := range g.attempts {
		if fit, ok := errors.AsType[*fitError](m.err); ok && plugin != "" {
			fit.plugins.Insert(plugin)
		}
	}
}

// placed returns how many pods of the group have a node.
func (g *groupCycle) placed() (n int) {
	for _, m := range g.attempts {
		if m.err == nil {
			n++
		}
	}
	return n
}

// nominated reports whether room is being made for a pod of the group.
func (g *groupCycle) nominated() bool {
	return slices.ContainsFunc(g.attempts, func(m *member) bool { return m.nominated != nil && m.nominated.NominatedNodeName != "" })
}

// missing returns how many pods of the gang must still find a node before any is bound.
func (s *Scheduler) missing(g *groupCycle) int {
	least := plugins.MinCount(g.group)
	if state, err := s.groups.PodGroupStates().Get(g.group.Namespace, g.group.Name); err == nil {
		least -= state.ScheduledPodsCount()
	}
	return least
}

// lacks reports whether too few pods of the gang have a node: then its plugin still holds those that have one.
func (s *Scheduler) lacks(g *groupCycle) bool {
	return slices.ContainsFunc(g.attempts, func(m *member) bool {
		if m.err != nil {
			return false
		}
		waits := m.profile.GetWaitingPod(m.pod().UID)
		return waits != nil && slices.Contains(waits.GetPendingPlugins(), plugins.GangScheduling)
	})
}

// alike returns an error if a pod of the group, one that runs too, has another scheduler, priority or preemption policy
// than the group and the others. One attempt is made for all of them; and the group's priority, which no quota counts,
// gives a pod nothing that its own does not.
func (s *Scheduler) alike(g *groupCycle) error {
	var all []*v1.Pod
	for _, m := range g.attempts {
		all = append(all, m.pod())
	}
	first := all[0]
	if name, ok := pods.Group(first); ok {
		if state, err := s.groups.PodGroupStates().Get(name.Namespace, name.Name); err == nil {
			all = append(all, state.ScheduledPods()...)
		}
	}
	const rule = "all pods in a single pod group should have the same "
	for _, p := range all {
		if a, b := first.Spec.SchedulerName, p.Spec.SchedulerName; a != b {
			return fmt.Errorf(rule+".spec.schedulerName set, got: %q and %q", a, b)
		}
		if g.group == nil {
			continue
		}
		if a, b := framework.Priority(p), ptr.Deref(g.group.Spec.Priority, 0); a != b {
			return fmt.Errorf(rule+"priority as the pod group's priority, got %d and %d", a, b)
		}
		policy := framework.PreemptionPolicy(p)
		if of := g.group.Spec.PreemptionPolicy; of != nil && policy != v1.PreemptionPolicy(*of) {
			return fmt.Errorf(rule+"preemption policy as the pod group's preemption policy, got %v and %v", policy, *of)
		}
		if b := framework.PreemptionPolicy(first); policy != b {
			return fmt.Errorf(rule+"preemption policy, got %v and %v", policy, b)
		}
	}
	return nil
}

func (g *groupCycle) failAll(err error) error {
	for _, m := range g.attempts {
		m.err = err
	}
	return err
}

// reportGroup counts the attempt, and has the group's condition written.
func (s *Scheduler) reportGroup(ctx context.Context, g *groupCycle, err error) {
	result := resultScheduled
	unschedulable, pending := rejectedBy(err)
	switch {
	case err == nil:
	case unschedulable.Len()+pending.Len() > 0:
		result = resultUnschedulable
	default:
		result = resultError
	}
	profile := g.attempts[0].profile.Name
	podGroupAttempts.WithLabelValues(result, profile).Inc()
	podGroupDuration.WithLabelValues(result, profile).Observe(time.Since(g.start).Seconds())
	if g.group != nil && ctx.Err() == nil {
		s.groupStatuses.put(ctx, g.group.UID, &groupUpdate{g.group, g.condition(result, err)})
	}
}

// condition returns PodGroupInitiallyScheduled after this attempt.
func (g *groupCycle) condition(result string, err error) metav1.Condition {
	c := metav1.Condition{
		Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: metav1.ConditionTrue,
		Reason: "Scheduled", ObservedGeneration: g.group.Generation,
	}
	switch result {
	case resultUnschedulable:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, schedulingv1beta1.PodGroupReasonUnschedulable, err.Error()
	case resultError:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, schedulingv1beta1.PodGroupReasonSchedulerError, err.Error()
	}
	return c
}

// groupUpdate is what is to be told about an attempt at a pod group.
type groupUpdate struct {
	group     *schedulingv1beta1.PodGroup
	condition metav1.Condition
}

// over returns the update that stands for both: a group that was scheduled once stays so.
func (u *groupUpdate) over(last *groupUpdate) *groupUpdate {
	if last.condition.Status == metav1.ConditionTrue {
		return last
	}
	return u
}

// writeGroup writes a group's condition, unless it has been scheduled before: of pods that come later, the pods
// themselves tell.
func (s *Scheduler) writeGroup(ctx context.Context, u *groupUpdate) {
	group, err := s.groups.PodGroups().Get(u.group.Namespace, u.group.Name)
	if err != nil || group.UID != u.group.UID {
		return // gone
	}
	was := meta.FindStatusCondition(group.Status.Conditions, u.condition.Type)
	if was != nil && was.Status == metav1.ConditionTrue {
		return
	}
	conditions := slices.Clone(group.Status.Conditions)
	if !meta.SetStatusCondition(&conditions, u.condition) {
		return
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": group.UID},
		"status":   map[string]any{"conditions": []metav1.Condition{*meta.FindStatusCondition(conditions, u.condition.Type)}},
	})
	if err == nil {
		_, err = s.client.SchedulingV1beta1().PodGroups(group.Namespace).Patch(
			ctx, group.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot write the pod group's condition; the next attempt writes it again", "podGroup", klog.KObj(group))
	}
}
