package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/extender"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins"
	"wherry.dev/internal/trace"
)

// attempt is one way of one pod through the extension points.
type attempt struct {
	profile *framework.Profile
	info    *framework.QueuedPodInfo
	state   *framework.CycleState
	start   time.Time
	group   *groupCycle        // nil for a pod that is on its own
	node    string             // once it is decided
	assumed *framework.PodInfo // the pod as it is there
	held    string             // the node for which the pod was nominated when the attempt began
	// nominated is what becomes of the pod's nomination if it has no node; nil: nothing.
	nominated *fwk.NominatingInfo
	// planned is the node that was found in a rehearsal: it is looked at first.
	planned string
	// rehearsal means that it is only to be found out whether the pod fits.
	rehearsal bool
}

// pod returns the pod; once its node is decided, with it.
func (a *attempt) pod() *v1.Pod {
	if a.assumed != nil {
		return a.assumed.GetPod()
	}
	return a.info.GetPod()
}

// scheduleOne takes a pod from the queue to its node:
//
//  1. bring the snapshot up to date
//  2. PreFilter and Filter: the nodes on which it could run; none → PostFilter
//  3. PreScore and Score: the best of them
//  4. assume the pod there, Reserve, Permit
//  5. while the next pod's cycle runs: wait if Permit says so, PreBind, Bind, PostBind
//
// A failure at any step gives back what was taken and re-queues the pod.
func (s *Scheduler) scheduleOne(ctx context.Context, info *framework.QueuedPodInfo) {
	ctx, a := s.attempt(ctx, info)
	s.cycle.Lock()
	err := s.schedulingCycle(ctx, a)
	s.cycle.Unlock()
	if err != nil {
		s.fail(ctx, a, err)
		return
	}
	s.startBinding(ctx, a)
}

// attempt begins an attempt, and returns the context for all of it.
func (s *Scheduler) attempt(ctx context.Context, info *framework.QueuedPodInfo) (context.Context, *attempt) {
	pod := info.GetPod()
	ctx = trace.WithPod(ctx, string(pod.UID))
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("pod", klog.KObj(pod)))
	a := &attempt{
		profile: s.profiles[pod.Spec.SchedulerName], info: info,
		state: framework.NewCycleState(info.PodInfo), start: time.Now(), held: s.queue.Nominator().NodeOf(pod.UID),
	}
	trace.Record(ctx, string(pod.UID), "scheduler: wait in queue", info.Timestamp, a.start)
	return ctx, a
}

// startBinding binds the pod while the next one's cycle runs.
func (s *Scheduler) startBinding(ctx context.Context, a *attempt) {
	s.leaves(ctx, a, a.node)
	s.binding.Add(1)
	s.bindings.Go(func() {
		defer s.binding.Add(-1)
		s.bindingCycle(ctx, a)
	})
}

// schedulingCycle finds the pod's node and assumes the pod there. The caller holds s.cycle.
func (s *Scheduler) schedulingCycle(ctx context.Context, a *attempt) (err error) {
	ctx, span := trace.Start(ctx, "scheduler: schedule")
	defer func() { _ = trace.End(span, err) }()
	s.cache.Update(s.snapshot)
	if err := s.choose(ctx, a); err != nil {
		return err
	}
	algorithmDuration.Observe(time.Since(a.start).Seconds())
	assumed := a.info.On(a.node)
	if err := s.cache.Assume(assumed, a.node); err != nil {
		return err
	}
	a.assumed = assumed
	s.groups.Assume(a.pod())
	s.queue.Nominator().DeleteNominatedPodIfExists(a.pod())
	st := a.timed("Reserve", func() *fwk.Status { return a.profile.RunReservePluginsReserve(ctx, a.state, a.pod(), a.node) })
	if st.IsSuccess() {
		st = a.timed("Permit", func() *fwk.Status { return a.profile.Permit(ctx, a.state, a.pod(), a.node) })
	}
	if !st.IsSuccess() && !st.IsWait() {
		s.giveBack(ctx, a)
		return statusError(st, a.node)
	}
	return nil
}

// choose decides on the pod's node in the snapshot.
func (s *Scheduler) choose(ctx context.Context, a *attempt) error {
	feasible, err := s.findNodes(ctx, a)
	if err != nil {
		return err
	}
	a.node, err = s.selectNode(ctx, a, feasible)
	return err
}

// findNodes returns nodes that pass every filter, or a *fitError.
func (s *Scheduler) findNodes(ctx context.Context, a *attempt) ([]fwk.NodeInfo, error) {
	all := s.snapshot.Nodes()
	if len(all) == 0 {
		return nil, &noNodesError{waitFor: a.profile.Rejecters()}
	}
	fit := newFitError(len(all))
	if s.snapshot.Narrowed() {
		fit.among = all
	}
	var narrowed framework.Narrowed
	st := a.timed("PreFilter", func() (st *fwk.Status) {
		narrowed, st = a.profile.PreFilter(ctx, a.state, a.pod(), all)
		return st
	})
	if !st.IsSuccess() {
		if !st.IsRejected() {
			return nil, st.AsError()
		}
		fit.rejectAll(st)
		return nil, s.makeRoom(ctx, a, fit)
	}
	nodes := all
	switch {
	case narrowed.Names != nil:
		fit.exclude(narrowed.By)
		nodes = make([]fwk.NodeInfo, 0, narrowed.Names.Len())
		for name := range narrowed.Names {
			if n, ok := s.snapshot.Candidate(name); ok {
				nodes = append(nodes, n)
			}
		}
	case !s.snapshot.Narrowed(): // what is remembered is of all nodes
		a.profile.Recall(ctx, a.state, a.pod(), len(all), s.snapshot.Order(), a.start)
	}
	// Room was found for the pod on its planned or nominated node: no need to look at the others.
	if name := cmp.Or(a.planned, a.pod().Status.NominatedNodeName); name != "" && (narrowed.Names == nil || narrowed.Names.Has(name)) {
		if n, ok := s.snapshot.Candidate(name); ok {
			if feasible, err := s.filter(ctx, a, []fwk.NodeInfo{n}, 1, fit); err != nil || len(feasible) > 0 {
				return feasible, err
			}
		}
	}
	feasible, err := s.filter(ctx, a, nodes, s.enough(a.profile, len(nodes)), fit)
	if err != nil || len(feasible) > 0 {
		return feasible, err
	}
	return nil, s.makeRoom(ctx, a, fit)
}

// enough returns how many feasible nodes a search is to find, as percentageOfNodesToScore documents:
// by default half of them, less by one per cent for every 125 nodes, at least five per cent; and
// never fewer than 100 nodes.
func (s *Scheduler) enough(p *framework.Profile, nodes int) int {
	const least = 100
	if nodes <= least {
		return nodes
	}
	percentage := int(s.percentage)
	if p.PercentageOfNodesToScore != nil {
		percentage = int(*p.PercentageOfNodesToScore)
	}
	if percentage == 0 {
		percentage = max(5, 50-nodes/125)
	}
	return max(least, nodes*min(percentage, 100)/100)
}

// filter looks for nodes on which the pod can run until it has found as many as wanted. The next
// search begins where this one ended, so that all nodes get their turn.
func (s *Scheduler) filter(ctx context.Context, a *attempt, nodes []fwk.NodeInfo, wanted int, fit *fitError) ([]fwk.NodeInfo, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	began := time.Now()
	search, stop := context.WithCancel(ctx)
	defer stop()
	first := s.first % len(nodes)
	statuses := s.room(len(nodes))
	if cap(s.feasible) < wanted {
		s.feasible = make([]fwk.NodeInfo, wanted)
	}
	feasible := s.feasible[:wanted]
	var found atomic.Int32
	memo := a.state.Memo()
	var over atomic.Bool
	end := func() { over.Store(true); stop() }
	one := func(i int) {
		if i += first; i >= len(nodes) {
			i -= len(nodes)
		}
		st := memo.Filter(search, a.profile, a.state, a.pod(), nodes[i])
		switch {
		case st.IsSuccess():
			if n := int(found.Add(1)); n <= wanted {
				feasible[n-1] = nodes[i]
			}
			if int(found.Load()) >= wanted {
				end()
			}
		default:
			statuses[i] = st
			if !st.IsRejected() {
				end()
			}
		}
	}
	if memo.Cheap(a.state) {
		for i := 0; i < len(nodes) && !over.Load(); i++ {
			one(i)
		}
	} else {
		s.shared.Parallel.Until(search, len(nodes), one, "Filter")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	feasible = feasible[:min(int(found.Load()), wanted)]
	passed := len(feasible)
	result := fwk.Success
	if passed == 0 {
		result = fwk.Unschedulable
	}
	framework.ObservePoint("Filter", a.profile.Name, result, time.Since(began))
	a.profile.CountFilters(a.state, passed, statuses)
	looked := passed
	for _, st := range statuses {
		if st == nil {
			continue
		}
		if !st.IsRejected() && passed < wanted {
			return nil, st.AsError()
		}
		looked++
	}
	s.first = (first + looked) % len(nodes)
	feasible, err := s.extend(ctx, a, feasible, fit)
	if err != nil || len(feasible) > 0 {
		return feasible, err
	}
	fit.rejectLooked(nodes, statuses)
	return nil, nil
}

// room returns a status for each of so many nodes, all of them nil. It belongs to the scheduling cycle.
func (s *Scheduler) room(nodes int) []*fwk.Status {
	if cap(s.found) < nodes {
		s.found = make([]*fwk.Status, nodes)
	}
	s.found = s.found[:nodes]
	clear(s.found)
	return s.found
}

// extend asks the extenders about the nodes that the plugins have found.
func (s *Scheduler) extend(ctx context.Context, a *attempt, nodes []fwk.NodeInfo, fit *fitError) ([]fwk.NodeInfo, error) {
	for _, e := range s.shared.Extenders {
		if len(nodes) == 0 {
			break
		}
		if !e.IsFilter() || !e.IsInterested(a.pod()) {
			continue
		}
		left, failed, never, err := e.Filter(a.pod(), nodes)
		if err != nil {
			if !e.IsIgnorable() {
				return nil, fmt.Errorf("extender %s: %w", e.Name(), err)
			}
			klog.FromContext(ctx).Info("An extender failed and is left out, as it may be", "extender", e.Name(), "err", err)
			continue
		}
		for node, why := range failed {
			fit.reject(node, fwk.NewStatus(fwk.Unschedulable, why).WithPlugin(extender.Name))
		}
		for node, why := range never {
			fit.reject(node, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why).WithPlugin(extender.Name))
		}
		kept := sets.New[string]()
		for _, n := range left {
			kept.Insert(n.Node().Name)
		}
		for _, n := range nodes {
			if _, told := fit.statuses[n.Node().Name]; !told && !kept.Has(n.Node().Name) {
				fit.reject(n.Node().Name, fwk.NewStatus(fwk.Unschedulable, "node(s) were rejected by extender "+e.Name()).WithPlugin(extender.Name))
			}
		}
		nodes = left
	}
	return nodes, nil
}

// makeRoom asks PostFilter plugins, and returns fit with what they say.
func (s *Scheduler) makeRoom(ctx context.Context, a *attempt, fit *fitError) error {
	if a.rehearsal {
		return fit
	}
	if a.group != nil && (a.group.together || a.group.gang() && s.missing(a.group) > 0) {
		// Victims for one pod would be in vain if another one finds no room, or finds it in another domain. If enough of the
		// others do, the pod is on its own, which it learns when it is tried again.
		fit.roomUnknown = true
		return fit
	}
	var r *fwk.PostFilterResult
	st := a.timed("PostFilter", func() (st *fwk.Status) {
		r, st = a.profile.PostFilter(ctx, a.state, a.pod(), fit)
		return st
	})
	fit.postFilter = st.Message()
	if !st.IsSuccess() && !st.IsRejected() {
		fit.roomUnknown = true
		klog.FromContext(ctx).Error(st.AsError(), "Cannot find out whether room can be made for the pod")
		return fit
	}
	fit.plugins = fit.plugins.Union(a.state.Rejecters())
	if r != nil {
		a.nominated = r.NominatingInfo
	}
	return fit
}

// selectNode returns the node with the highest score. Nodes with equal scores take turns.
func (s *Scheduler) selectNode(ctx context.Context, a *attempt, feasible []fwk.NodeInfo) (string, error) {
	if len(feasible) == 1 {
		s.keep(a, feasible, 0, nil)
		return feasible[0].Node().Name, nil
	}
	st := a.timed("PreScore", func() *fwk.Status { return a.profile.RunPreScorePlugins(ctx, a.state, a.pod(), feasible) })
	if !st.IsSuccess() {
		return "", st.AsError()
	}
	var scores []int64
	st = a.timed("Score", func() (st *fwk.Status) {
		scores, st = a.profile.Totals(ctx, a.state, a.pod(), feasible, a.state.Memo())
		return st
	})
	if !st.IsSuccess() {
		return "", st.AsError()
	}
	s.prioritize(ctx, a, feasible, scores)
	if log := klog.FromContext(ctx).V(10); log.Enabled() {
		logScores(log, a, feasible, scores)
	}
	top, equal := scores[0], 0
	for _, score := range scores {
		switch {
		case score > top:
			top, equal = score, 1
		case score == top:
			equal++
		}
	}
	s.next++
	turn := s.next % equal
	for i, score := range scores {
		if score != top {
			continue
		}
		if turn == 0 {
			s.keep(a, feasible, i, scores)
			return feasible[i].Node().Name, nil
		}
		turn--
	}
	return "", errors.New("no node has the highest score")
}

// keep remembers how a pod's node was chosen.
func (s *Scheduler) keep(a *attempt, feasible []fwk.NodeInfo, chosen int, scores []int64) {
	if !a.rehearsal {
		s.choices.keep(a, len(s.snapshot.Nodes()), feasible, chosen, scores)
	}
}

// logScores logs of what every node's score is made up, in upstream's words.
func logScores(log klog.Logger, a *attempt, nodes []fwk.NodeInfo, totals []int64) {
	for i, n := range nodes {
		for _, s := range a.profile.LastScores(a.state, i, nil) {
			log.Info("Plugin scored node for pod", "plugin", s.Plugin, "node", n.Node().Name, "score", s.Score)
		}
		log.Info("Calculated node's final score for pod", "node", n.Node().Name, "score", totals[i])
	}
}

// prioritize adds the extenders' scores, which go up to ten. Those of an extender that fails do not count.
func (s *Scheduler) prioritize(ctx context.Context, a *attempt, nodes []fwk.NodeInfo, scores []int64) {
	for _, e := range s.shared.Extenders {
		if !e.IsPrioritizer() || !e.IsInterested(a.pod()) {
			continue
		}
		list, weight, err := e.Prioritize(a.pod(), nodes)
		if err != nil {
			klog.FromContext(ctx).Info("The scores of an extender do not count, because it failed", "extender", e.Name(), "err", err)
			continue
		}
		for _, h := range *list {
			if i := slices.IndexFunc(nodes, func(n fwk.NodeInfo) bool { return n.Node().Name == h.Host }); i >= 0 {
				scores[i] += h.Score * weight * (fwk.MaxScore / extenderv1.MaxExtenderPriority)
			}
		}
	}
}

// bindingCycle binds the pod to its node. A pod that waits, for Permit or PreBind, is not bound any more when the
// scheduler is told to stop; once it has been let through, its binding is completed even then.
func (s *Scheduler) bindingCycle(ctx context.Context, a *attempt) {
	bound := context.WithoutCancel(ctx)
	waits := time.Now()
	st := a.profile.WaitOnPermit(ctx, a.pod())
	permitWait.WithLabelValues(st.Code().String()).Observe(time.Since(waits).Seconds())
	if st.IsSuccess() {
		st = s.preBind(ctx, a)
	}
	if st.IsSuccess() {
		st = s.bind(bound, a)
	}
	if !st.IsSuccess() {
		s.giveBack(bound, a)
		s.fail(ctx, a, statusError(st, a.node))
		return
	}
	pod := a.pod()
	observe(resultScheduled, a.profile.Name, time.Since(a.start))
	observeSLI(a.info, time.Now())
	s.recorder(ctx, a.profile).Eventf(pod, nil, v1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, a.node)
	a.timed("PostBind", func() *fwk.Status {
		a.profile.PostBind(bound, a.state, pod, a.node)
		return nil
	})
}

// preBind runs the PreBind plugins, as long as nobody stops that: whoever deletes the pod or preempts it, or the end
// of the scheduler. The plugins limit their time themselves, VolumeBinding by bindTimeoutSeconds.
func (s *Scheduler) preBind(ctx context.Context, a *attempt) *fwk.Status {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.profile.AddPodInPreBind(a.pod().UID, cancel)
	defer a.profile.RemovePodInPreBind(a.pod().UID)
	if st := a.profile.PreBind(ctx, a.state, a.pod(), a.node); !st.IsSuccess() {
		return st
	}
	if !a.profile.GetPodInPreBind(a.pod().UID).MarkPrebound() || ctx.Err() != nil {
		return fwk.AsStatus(context.Cause(ctx))
	}
	return nil
}

func (s *Scheduler) bind(ctx context.Context, a *attempt) *fwk.Status {
	ctx, timeout := context.WithTimeout(ctx, bindTimeout)
	defer timeout()
	ctx, span := trace.Start(ctx, "scheduler: bind")
	st := a.timed("Bind", func() *fwk.Status { return s.bindOrExtend(ctx, a) })
	_ = trace.End(span, st.AsError())
	return st
}

// bindOrExtend lets the extender bind that wants to, or the plugins.
func (s *Scheduler) bindOrExtend(ctx context.Context, a *attempt) *fwk.Status {
	for _, e := range s.shared.Extenders {
		if !e.IsBinder() || !e.IsInterested(a.pod()) {
			continue
		}
		err := e.Bind(&v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: a.pod().Namespace, Name: a.pod().Name, UID: a.pod().UID},
			Target:     v1.ObjectReference{Kind: "Node", Name: a.node},
		})
		if err != nil && e.IsIgnorable() {
			klog.FromContext(ctx).Info("An extender cannot bind and is left out, as it may be", "extender", e.Name(), "err", err)
			continue
		}
		return fwk.AsStatus(err)
	}
	return a.profile.Bind(ctx, a.state, a.pod(), a.node)
}

// bindTimeout limits the binding itself, so that a plugin or an extender that hangs does not hold the pod for ever.
const bindTimeout = 10 * time.Minute

// giveBack undoes what the cycle has done for the pod, and tells those for whom there may be room now.
func (s *Scheduler) giveBack(ctx context.Context, a *attempt) {
	s.undo(ctx, a)
	s.queue.Move(ctx, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, a.pod(), nil)
	a.assumed = nil
}

func (s *Scheduler) undo(ctx context.Context, a *attempt) {
	a.timed("Unreserve", func() *fwk.Status {
		a.profile.RunReservePluginsUnreserve(ctx, a.state, a.pod(), a.node)
		return nil
	})
	s.cache.Forget(a.pod().UID)
	s.groups.Forget(a.pod())
}

// statusError returns a rejection as a *fitError, and an error as it is.
func statusError(st *fwk.Status, node string) error {
	if !st.IsRejected() {
		return st.AsError()
	}
	fit := newFitError(1)
	fit.reject(node, st)
	return fit
}

// noNodesError says that there are no nodes at all. Any plugin that looks at nodes may find one that
// fits when that changes.
type noNodesError struct{ waitFor sets.Set[string] }

func (*noNodesError) Error() string { return "no nodes available to schedule pods" }

// rejectedBy returns the plugins that rejected the pod, and those for which it is to wait; none at
// all for an error.
func rejectedBy(err error) (unschedulable, pending sets.Set[string]) {
	var fit *fitError
	var none *noNodesError
	switch {
	case errors.As(err, &fit):
		return fit.plugins, fit.pending
	case errors.As(err, &none):
		return none.waitFor, nil
	case errors.Is(err, errGang):
		return sets.New(plugins.GangScheduling), nil
	}
	return nil, nil
}

// Get returns why the pod cannot run on the node. It is for PostFilter plugins.
func (f *fitError) Get(node string) *fwk.Status {
	if st, ok := f.statuses[node]; ok {
		return st
	}
	if f.byName != nil {
		return cmp.Or(f.byName()[node], f.absent)
	}
	return f.absent
}

// NodesForStatusCode returns the nodes with such a status. It is for PostFilter plugins.
func (f *fitError) NodesForStatusCode(lister fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	all, err := lister.List()
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	if f.among != nil {
		all = f.among
	}
	same := len(all) == len(f.looked) && len(all) > 0 && all[0] == f.looked[0] // no need to search for each of them
	var out []fwk.NodeInfo
	for i, n := range all {
		var st *fwk.Status
		if same && len(f.statuses) == 0 {
			st = cmp.Or(f.found[i], f.absent)
		} else {
			st = f.Get(n.Node().Name)
		}
		if st.Code() != code {
			continue
		}
		if out == nil {
			out = make([]fwk.NodeInfo, 0, len(all)-i)
		}
		out = append(out, n)
	}
	return out, nil
}
