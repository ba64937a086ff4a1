package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/trace"
)

// scheduleOne takes a pod from the queue to its node:
//
//  1. bring the snapshot up to date
//  2. PreFilter and Filter: the nodes on which it could run; none → PostFilter
//  3. PreScore and Score: the best of them
//  4. assume the pod there, Reserve, Permit
//  5. bind, while the next pod's cycle runs
//
// A failure at any step gives back what was taken and re-queues the pod.
func (s *Scheduler) scheduleOne(ctx context.Context, info *framework.QueuedPodInfo) {
	pod := info.GetPod()
	profile := s.profiles[pod.Spec.SchedulerName]
	ctx = trace.WithPod(ctx, string(pod.UID))
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("pod", klog.KObj(pod)))
	start := time.Now()
	trace.Record(ctx, string(pod.UID), "scheduler: wait in queue", info.Timestamp, start)

	cycle, span := trace.Start(ctx, "scheduler: schedule")
	state := framework.NewCycleState()
	node, err := s.schedulingCycle(cycle, profile, state, info)
	_ = trace.End(span, err)
	if err != nil {
		s.fail(ctx, profile, info, err, start)
		return
	}
	s.bindings.Go(func() { s.bindingCycle(ctx, profile, state, info, node, start) })
}

func (s *Scheduler) schedulingCycle(ctx context.Context, p *framework.Profile, state fwk.CycleState, info *framework.QueuedPodInfo) (string, error) {
	s.cache.Update(&s.snapshot)
	nodes := s.snapshot.Nodes()
	if len(nodes) == 0 {
		return "", errNoNodes
	}
	feasible, err := s.findNodes(ctx, p, state, info.GetPod(), nodes)
	if err != nil {
		return "", err
	}
	node, err := s.selectNode(ctx, p, state, info.GetPod(), feasible)
	if err != nil {
		return "", err
	}
	if err := s.cache.Assume(info.PodInfo, node); err != nil {
		return "", err
	}
	st := p.Reserve(ctx, state, info.GetPod(), node)
	if st.IsSuccess() {
		st = p.Permit(ctx, state, info.GetPod(), node)
	}
	if !st.IsSuccess() {
		s.giveBack(ctx, p, state, info, node)
		return "", statusError(st, node)
	}
	return node, nil
}

// findNodes returns the nodes that pass every filter, or a *fitError.
func (s *Scheduler) findNodes(ctx context.Context, p *framework.Profile, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) ([]fwk.NodeInfo, error) {
	fit := &fitError{nodes: len(nodes), statuses: map[string]*fwk.Status{}, plugins: sets.New[string]()}
	names, st := p.PreFilter(ctx, state, pod, nodes)
	if !st.IsSuccess() {
		if !st.IsRejected() {
			return nil, st.AsError()
		}
		fit.preFilter = st.Message()
		fit.plugins.Insert(st.Plugin())
		return nil, fit
	}
	var feasible []fwk.NodeInfo
	for _, n := range nodes {
		if names != nil && !names.Has(n.Node().Name) {
			fit.reject(n.Node().Name, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't satisfy plugin(s) [NodeAffinity]").WithPlugin("NodeAffinity"))
			continue
		}
		st := p.Filter(ctx, state, pod, n)
		switch {
		case st.IsSuccess():
			feasible = append(feasible, n)
		case st.IsRejected():
			fit.reject(n.Node().Name, st)
		default:
			return nil, st.AsError()
		}
	}
	if len(feasible) > 0 {
		return feasible, nil
	}
	_, st = p.PostFilter(ctx, state, pod, fit)
	fit.postFilter = st.Message()
	return nil, fit
}

// selectNode returns the node with the highest score. Nodes with equal scores take turns.
func (s *Scheduler) selectNode(ctx context.Context, p *framework.Profile, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo) (string, error) {
	if len(feasible) == 1 {
		return feasible[0].Node().Name, nil
	}
	scores, st := p.Score(ctx, state, pod, feasible)
	if !st.IsSuccess() {
		return "", st.AsError()
	}
	var best []string
	var top int64 = -1
	for i, n := range feasible {
		switch {
		case scores[i] > top:
			top, best = scores[i], append(best[:0], n.Node().Name)
		case scores[i] == top:
			best = append(best, n.Node().Name)
		}
	}
	s.next++
	return best[s.next%len(best)], nil
}

func (s *Scheduler) bindingCycle(ctx context.Context, p *framework.Profile, state fwk.CycleState, info *framework.QueuedPodInfo, node string, start time.Time) {
	// Once decided, a binding is completed even if the scheduler is told to stop.
	bindCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bindTimeout)
	defer cancel()
	bindCtx, span := trace.Start(bindCtx, "scheduler: bind")
	st := p.Bind(bindCtx, state, info.GetPod(), node)
	_ = trace.End(span, st.AsError())
	if !st.IsSuccess() {
		s.giveBack(bindCtx, p, state, info, node)
		s.fail(ctx, p, info, statusError(st, node), start)
		return
	}
	pod := info.GetPod()
	observe(resultScheduled, p.Name, time.Since(start))
	observeSLI(info, time.Now())
	s.recorder.WithLogger(klog.FromContext(ctx)).Eventf(pod, nil, v1.EventTypeNormal, "Scheduled", "Binding",
		"Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
}

// bindTimeout limits a binding. Upstream has the same limit for its API calls.
const bindTimeout = 100 * time.Second

func (s *Scheduler) giveBack(ctx context.Context, p *framework.Profile, state fwk.CycleState, info *framework.QueuedPodInfo, node string) {
	p.Unreserve(ctx, state, info.GetPod(), node)
	s.cache.Forget(info.GetPod().UID)
	s.queue.Move(ctx, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, info.GetPod(), nil)
}

// statusError returns a rejection as a *fitError, and an error as it is.
func statusError(st *fwk.Status, node string) error {
	if !st.IsRejected() {
		return st.AsError()
	}
	fit := &fitError{nodes: 1, statuses: map[string]*fwk.Status{}, plugins: sets.New[string]()}
	fit.reject(node, st)
	return fit
}

var errNoNodes = errors.New("no nodes available to schedule pods")

func rejectedBy(err error) sets.Set[string] {
	var fit *fitError
	switch {
	case errors.As(err, &fit):
		return fit.plugins
	case errors.Is(err, errNoNodes):
		return sets.New("NodeName") // it waits for a node to be added
	}
	return nil
}

func (f *fitError) reject(node string, st *fwk.Status) {
	f.statuses[node] = st
	f.plugins.Insert(st.Plugin())
}

// Get is for PostFilter plugins.
func (f *fitError) Get(node string) *fwk.Status {
	if st, ok := f.statuses[node]; ok {
		return st
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
}

// NodesForStatusCode is for PostFilter plugins.
func (f *fitError) NodesForStatusCode(lister fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	var out []fwk.NodeInfo
	for name, st := range f.statuses {
		if st.Code() != code {
			continue
		}
		n, err := lister.Get(name)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		out = append(out, n)
	}
	return out, nil
}
