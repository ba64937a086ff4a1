package plugins

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/scheduler/framework"
)

// DefaultPreemption makes room for a pod that fits nowhere, by ending pods with a lower priority: on
// one node, as few and as unimportant ones as possible, and if it can without breaking disruption
// budgets. The pod is nominated for that node and waits until they are gone. For a gang it does so on
// all nodes (preemption_groups.go); of pod groups that are disrupted as a whole, it ends all pods.
type DefaultPreemption struct {
	h       fwk.Handle
	budgets policylisters.PodDisruptionBudgetLister
	pods    corelisters.PodLister
	// The search ends when it has found as many nodes as these say; see candidates.
	percentage, least int

	mu         sync.Mutex
	preempting map[types.UID]*preemption // by the pod that it is for
	last       *budgets
}

// preemption is what is known of the end of somebody's victims, until a minute later.
type preemption struct {
	by      preemptor
	done    bool      // all are deleted as far as the API is concerned
	victims []*v1.Pod // that are deleted there
	asked   bool      // the queue has asked for a pod meanwhile
}

// preemptor is for whom room is made: a pod, or those of a gang that have no node.
type preemptor struct {
	object   runtime.Object
	kind     string // of object, as events have it
	uid      types.UID
	priority int32
	pods     []*v1.Pod
	nodes    sets.Set[string] // for which the pods are nominated
}

func (p preemptor) has(pod *v1.Pod) bool {
	return slices.ContainsFunc(p.pods, func(own *v1.Pod) bool { return own.UID == pod.UID })
}

// preemptionSeen is how long a preemption is remembered when it is done: by then its victims are seen to go.
const preemptionSeen = time.Minute

func newDefaultPreemption(_ context.Context, args *configv1.DefaultPreemptionArgs, h fwk.Handle) (fwk.Plugin, error) {
	percentage, least := ptr.Deref(args.MinCandidateNodesPercentage, 10), ptr.Deref(args.MinCandidateNodesAbsolute, 100)
	switch {
	case percentage < 0 || percentage > 100:
		return nil, fmt.Errorf("minCandidateNodesPercentage: Invalid value: %d: not in valid range [0, 100]", percentage)
	case least < 0:
		return nil, fmt.Errorf("minCandidateNodesAbsolute: Invalid value: %d: not in valid range [0, inf)", least)
	case percentage == 0 && least == 0:
		return nil, errors.New("minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute")
	}
	return &DefaultPreemption{
		h: h, budgets: h.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister(),
		pods:       h.SharedInformerFactory().Core().V1().Pods().Lister(),
		percentage: int(percentage), least: int(least), preempting: map[types.UID]*preemption{},
	}, nil
}

// Name returns upstream's name.
func (*DefaultPreemption) Name() string { return "DefaultPreemption" }

// PreEnqueue keeps a pod out of the queue while its victims are being ended: it could only fail again.
func (d *DefaultPreemption) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.preempting[pod.UID]
	if p == nil || d.overLocked(p) {
		return nil
	}
	p.asked = true
	who := "pod"
	if p.by.uid != pod.UID {
		who = "pod group"
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for the preemption for this %s to be finished", who))
}

// overLocked reports whether all victims are deleted, and those that go at once are seen to be gone.
func (d *DefaultPreemption) overLocked(p *preemption) bool {
	return p.done && !slices.ContainsFunc(p.victims, func(v *v1.Pod) bool {
		if ptr.Deref(v.Spec.TerminationGracePeriodSeconds, 0) > 0 || len(v.Finalizers) > 0 {
			return false
		}
		there, err := d.pods.Pods(v.Namespace).Get(v.Name)
		return err == nil && there.UID == v.UID && there.DeletionTimestamp == nil
	})
}

// EventsToRegister returns the end of pods, which opens PreEnqueue's gate if they were victims: of those that were only
// about to be bound, too. The end of the preemption does so as well.
func (d *DefaultPreemption) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{framework.Event(fwk.Pod, fwk.Delete, d.hint)}, nil
}

func (d *DefaultPreemption) hint(_ klog.Logger, pod *v1.Pod, _, _ any) (fwk.QueueingHint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.preempting[pod.UID]
	return framework.QueueWhen(p == nil || d.overLocked(p))
}

// PostFilter looks for the best node, and ends its victims in the background.
func (d *DefaultPreemption) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, m fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	preemptionAttempts.Inc()
	r, st := d.findRoom(ctx, state, pod, m)
	return r, fwk.NewStatus(st.Code(), "preemption: "+st.Message())
}

func (d *DefaultPreemption) findRoom(ctx context.Context, state fwk.CycleState, pod *v1.Pod, m fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if why := d.notEligible(pod, m); why != "" {
		return nil, fwk.NewStatus(fwk.Unschedulable, why)
	}
	all, err := d.h.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	nodes, err := m.NodesForStatusCode(d.h.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	budgets, err := d.listBudgets()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	found, statuses, err := d.candidates(ctx, state, pod, nodes, budgets)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if c, ok := state.(*framework.CycleState); ok {
		for _, st := range statuses {
			if st.Plugin() != "" {
				c.AddRejecter(st.Plugin())
			}
		}
	}
	if len(found) == 0 {
		why := framework.NotAvailable(len(all), slices.Values(statuses), fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling"))
		return nominate(""), fwk.NewStatus(fwk.Unschedulable, why)
	}
	if found, err = d.extend(ctx, pod, found); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if len(found) == 0 {
		return nil, fwk.NewStatus(fwk.Unschedulable, "no candidate node for preemption")
	}
	best := slices.MinFunc(found, compareCandidates)
	d.start(ctx, preemptor{pod, "pod", pod.UID, d.priority(pod), []*v1.Pod{pod}, sets.New(best.node)}, best.victims)
	return nominate(best.node), fwk.NewStatus(fwk.Success,
		fmt.Sprintf("found a potential placement for pod on node %s, preempting %d victims", best.node, len(best.victims)))
}

func nominate(node string) *fwk.PostFilterResult {
	return &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatedNodeName: node, NominatingMode: fwk.ModeOverride}}
}

// extend asks the extenders which of the candidates they let be, and with which victims.
func (d *DefaultPreemption) extend(ctx context.Context, pod *v1.Pod, found []candidate) ([]candidate, error) {
	for _, e := range d.h.Extenders() {
		if !e.SupportsPreemption() || !e.IsInterested(pod) || len(found) == 0 {
			continue
		}
		victims := map[string]*extenderv1.Victims{}
		for _, c := range found {
			victims[c.node] = &extenderv1.Victims{Pods: c.victims, NumPDBViolations: int64(c.violations)}
		}
		left, err := e.ProcessPreemption(pod, victims, d.h.SnapshotSharedLister().NodeInfos())
		if err != nil {
			if !e.IsIgnorable() {
				return nil, err
			}
			klog.FromContext(ctx).Info("An extender failed and is left out, as it may be", "extender", e.Name(), "err", err)
			continue
		}
		found = nil
		for node, v := range left {
			if v == nil || len(v.Pods) == 0 {
				if e.IsIgnorable() {
					continue
				}
				return nil, fmt.Errorf("extender %s: expected at least one victim pod on node %q", e.Name(), node)
			}
			found = append(found, newCandidate(node, v.Pods, int(v.NumPDBViolations)))
		}
	}
	return found, nil
}

// notEligible returns why the pod must not preempt others, or "".
func (d *DefaultPreemption) notEligible(pod *v1.Pod, m fwk.NodeToStatusReader) string {
	if framework.PreemptionPolicy(pod) == v1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	node := pod.Status.NominatedNodeName
	if node == "" || m.Get(node).Code() == fwk.UnschedulableAndUnresolvable {
		return ""
	}
	n, err := d.h.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return "" // the node is gone
	}
	if d.emptying(n, pod, d.priority(pod)) {
		return emptying
	}
	return ""
}

// emptying is why nobody else is preempted on a node that is.
const emptying = "not eligible due to a terminating pod on the nominated node."

// emptying reports whether pods on the node are about to make room for the pod, or for something of its priority.
func (d *DefaultPreemption) emptying(n fwk.NodeInfo, pod *v1.Pod, priority int32) bool {
	victims := d.victims(pod, n.Node().Name)
	return slices.ContainsFunc(n.GetPods(), func(p fwk.PodInfo) bool {
		return victims.Has(p.GetPod().UID) || preempted(p.GetPod()) && d.priority(p.GetPod()) < priority
	})
}

// victims returns whom the pod's last preemption has ended on the node. The scheduler may not have seen it yet.
func (d *DefaultPreemption) victims(pod *v1.Pod, node string) sets.Set[types.UID] {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.preempting[pod.UID]
	if p == nil || !p.by.nodes.Has(node) {
		return nil
	}
	out := sets.New[types.UID]()
	for _, v := range p.victims {
		out.Insert(v.UID)
	}
	return out
}

// preempted reports whether the pod is going because of a preemption.
func preempted(pod *v1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
	})
}

// candidate is a node on which the pod would fit without its victims, of which the most important
// come first.
type candidate struct {
	node       string
	victims    []*v1.Pod // on this node, and of pod groups on others
	violations int       // of disruption budgets
	// sum is that of the victims' priorities, raised so that none is negative: more victims must never look better
	// than fewer.
	sum      int
	earliest time.Time // start of the victims with the highest priority
}

// newCandidate puts the victims, of which there is at least one, in order.
func newCandidate(node string, victims []*v1.Pod, violations int) candidate {
	slices.SortStableFunc(victims, compareImportance)
	c := candidate{node: node, victims: victims, violations: violations, earliest: startOf(victims[0])}
	for _, v := range victims {
		c.sum += int(framework.Priority(v)) + math.MaxInt32 + 1
	}
	return c
}

// isLocal reports whether all victims are on the node.
func (c candidate) isLocal() bool {
	return !slices.ContainsFunc(c.victims, func(v *v1.Pod) bool { return v.Spec.NodeName != c.node })
}

// candidates tries the nodes, beginning at a random one, until it has found a tenth of them (by
// default, and at least a hundred) of which one breaks no budget. It returns why the others are of no
// use.
func (d *DefaultPreemption) candidates(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, budgets *budgets) ([]candidate, []*fwk.Status, error) {
	if len(nodes) == 0 {
		return nil, nil, nil
	}
	search, stop := context.WithCancel(ctx)
	defer stop()
	wanted := max(len(nodes)*d.percentage/100, d.least)
	first := rand.IntN(len(nodes)) //nolint:gosec // only so that not always the same nodes are tried
	var rooms framework.Rooms
	if c, ok := state.(*framework.CycleState); ok {
		rooms = c.Rooms(pod)
	}
	var mu sync.Mutex
	var found []candidate
	harmless := false
	var errs []error
	statuses := make([]*fwk.Status, len(nodes)) // each written by who looks at the node
	d.h.Parallelizer().Until(search, len(nodes), func(i int) {
		n := nodes[(first+i)%len(nodes)]
		t, ok := rooms.Get(n).(*tried)
		if !ok || t.status.IsSuccess() && t.budgets != budgets {
			t = &tried{budgets: budgets}
			t.candidate, t.status = d.try(search, state, pod, n, budgets)
			if t.status.IsRejected() || t.status.IsSuccess() && t.candidate.isLocal() {
				rooms.Put(n, t)
			}
		}
		if t.status.IsRejected() {
			statuses[i] = t.status
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case t.status.IsSuccess():
			found = append(found, t.candidate)
			harmless = harmless || t.candidate.violations == 0
			if harmless && len(found) >= wanted {
				stop()
			}
		case search.Err() == nil:
			errs = append(errs, t.status.AsError())
		}
	}, d.Name())
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if len(found) > 0 {
		errs = nil
	}
	statuses = slices.DeleteFunc(statuses, func(st *fwk.Status) bool { return st == nil })
	return found, statuses, utilerrors.NewAggregate(errs)
}

// noVictims is the status of a node without less important pods.
var noVictims = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "No preemption victims found for incoming pod")

// tried is what is found out about a node: the candidate, or why it is none. The budgets count for a candidate only.
type tried struct {
	candidate candidate
	status    *fwk.Status
	budgets   *budgets
}

// try finds the victims on one node: first all of a lower priority go, then as many as possible
// come back, those that a budget protects first, and the more important ones before the others.
func (d *DefaultPreemption) try(ctx context.Context, state fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo, budgets *budgets) (candidate, *fwk.Status) {
	lower := d.lower([]fwk.NodeInfo{n}, d.priority(pod))
	if len(lower) == 0 {
		return candidate{}, noVictims
	}
	name := n.Node().Name
	state, n = state.Clone(), n.Snapshot()
	// The other pods of a group may be on other nodes, of which only the filters' state is told.
	change := func(v victim, one func(p fwk.PodInfo, n fwk.NodeInfo) *fwk.Status) *fwk.Status {
		for _, p := range v.pods {
			there := n
			if node := p.GetPod().Spec.NodeName; node != name && v.group != nil {
				var err error
				if there, err = d.h.SnapshotSharedLister().NodeInfos().Get(node); err != nil {
					return fwk.AsStatus(err)
				}
			}
			if st := one(p, there); !st.IsSuccess() {
				return st
			}
		}
		return nil
	}
	remove := func(p fwk.PodInfo, there fwk.NodeInfo) *fwk.Status {
		if there == n {
			if err := n.RemovePod(klog.FromContext(ctx), p.GetPod()); err != nil {
				return fwk.AsStatus(err)
			}
		}
		return d.h.RunPreFilterExtensionRemovePod(ctx, state, pod, p, there)
	}
	add := func(p fwk.PodInfo, there fwk.NodeInfo) *fwk.Status {
		if there == n {
			n.AddPodInfo(p)
		}
		return d.h.RunPreFilterExtensionAddPod(ctx, state, pod, p, there)
	}
	for i := range lower {
		if err := d.complete(&lower[i]); err != nil {
			return candidate{}, fwk.AsStatus(err)
		}
		if st := change(lower[i], remove); !st.IsSuccess() {
			return candidate{}, st
		}
	}
	if st := d.h.RunFilterPluginsWithNominatedPods(ctx, state, pod, n); !st.IsSuccess() {
		return candidate{}, st
	}
	slices.SortStableFunc(lower, compareVictims)
	protected, free := split(lower, budgets)
	var victims []victim
	violations := 0
	for _, v := range append(protected, free...) {
		if st := change(v, add); !st.IsSuccess() {
			return candidate{}, st
		}
		if d.h.RunFilterPluginsWithNominatedPods(ctx, state, pod, n).IsSuccess() {
			continue
		}
		if st := change(v, remove); !st.IsSuccess() {
			return candidate{}, st
		}
		victims = append(victims, v)
		violations += v.violations
	}
	if len(victims) == 0 {
		return candidate{}, fwk.AsStatus(fmt.Errorf("expected at least one victim pod on node %q", name))
	}
	return newCandidate(name, podsOf(victims), violations), nil
}

// compareCandidates puts the better one first, by these in turn: fewer violations of budgets, a lower
// priority of the most important victim, a lower sum of priorities, fewer victims, and a later start
// of the most important victims.
func compareCandidates(a, b candidate) int {
	return cmp.Or(
		cmp.Compare(a.violations, b.violations),
		cmp.Compare(framework.Priority(a.victims[0]), framework.Priority(b.victims[0])),
		cmp.Compare(a.sum, b.sum),
		cmp.Compare(len(a.victims), len(b.victims)),
		b.earliest.Compare(a.earliest),
	)
}

// start ends the victims. The scheduler goes on meanwhile; the preemptor's pods are not tried before this is done, and
// at once if it fails.
func (d *DefaultPreemption) start(ctx context.Context, by preemptor, victims []*v1.Pod) {
	preemptionVictims.Observe(float64(len(victims)))
	p := &preemption{by: by}
	d.mu.Lock()
	for _, pod := range by.pods {
		d.preempting[pod.UID] = p
	}
	d.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	go func() {
		log := klog.FromContext(ctx)
		began := time.Now()
		err := errors.Join(d.denominate(ctx, by), d.preempt(ctx, by, victims, p))
		observePreemption(err, began)
		if err != nil {
			log.Error(err, "Cannot preempt all victims; the preemptor is tried again", "nodes", sets.List(by.nodes))
			d.forget(log, p)
			return
		}
		d.mu.Lock()
		p.done = true
		again := p.asked && d.overLocked(p)
		d.mu.Unlock()
		if again {
			d.activate(log, by.pods...)
		}
		time.AfterFunc(preemptionSeen, func() { d.forget(log, p) })
	}()
}

// forget forgets a preemption, unless there is a newer one for the pods. They do not wait for it any more.
func (d *DefaultPreemption) forget(log klog.Logger, p *preemption) {
	var wait []*v1.Pod
	d.mu.Lock()
	over := p.done && d.overLocked(p)
	for _, pod := range p.by.pods {
		if d.preempting[pod.UID] != p {
			continue
		}
		delete(d.preempting, pod.UID)
		if !over {
			wait = append(wait, pod)
		}
	}
	d.mu.Unlock()
	d.activate(log, wait...)
}

func (d *DefaultPreemption) activate(log klog.Logger, pods ...*v1.Pod) {
	if len(pods) == 0 {
		return
	}
	byName := map[string]*v1.Pod{}
	for _, pod := range pods {
		byName[pod.Namespace+"/"+pod.Name] = pod
	}
	d.h.Activate(log, byName)
}

// denominate takes the nomination from pods of a lower priority for the same nodes, so that they look
// for another place.
func (d *DefaultPreemption) denominate(ctx context.Context, by preemptor) error {
	var errs []error
	for node := range by.nodes {
		for _, n := range d.h.NominatedPodsForNode(node) {
			other := n.GetPod()
			if d.priority(other) >= by.priority || by.has(other) {
				continue
			}
			d.h.DeleteNominatedPodIfExists(other)
			errs = append(errs, d.patch(ctx, other, map[string]any{"nominatedNodeName": nil}))
			d.activate(klog.FromContext(ctx), other)
		}
	}
	return errors.Join(errs...)
}

func (d *DefaultPreemption) preempt(ctx context.Context, by preemptor, victims []*v1.Pod, p *preemption) error {
	if err := d.tellGroups(ctx, by, victims); err != nil {
		return err
	}
	errs := make([]error, len(victims))
	d.h.Parallelizer().Until(ctx, len(victims), func(i int) {
		if victims[i].DeletionTimestamp == nil {
			errs[i] = d.end(ctx, by, victims[i], p)
		}
	}, d.Name())
	return errors.Join(errs...)
}

// message is that of the DisruptionTarget conditions of those who are preempted.
func (p preemptor) message() string {
	return fmt.Sprintf("%s: preempting to accommodate a higher priority %s", p.pods[0].Spec.SchedulerName, p.kind)
}

// end ends one victim. One that is only about to be bound goes back to the queue.
func (d *DefaultPreemption) end(ctx context.Context, by preemptor, victim *v1.Pod, p *preemption) error {
	note := fmt.Sprintf("Preempted by %s %v on node %v", by.kind, by.uid, victim.Spec.NodeName)
	if d.takeBack(victim) {
		note += " (in kube-scheduler memory)."
	} else {
		condition := v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler, Message: by.message(),
			ObservedGeneration: victim.Generation, LastTransitionTime: metav1.Now(),
		}
		err := d.patch(ctx, victim, map[string]any{"conditions": []v1.PodCondition{condition}})
		if err == nil {
			err = d.h.ClientSet().CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, *metav1.NewPreconditionDeleteOptions(string(victim.UID)))
		}
		gone := apierrors.IsNotFound(err) || apierrors.IsConflict(err) // or another pod has its name
		if err != nil && !gone {
			return fmt.Errorf("preempt pod %s/%s: %w", victim.Namespace, victim.Name, err)
		}
		d.mu.Lock()
		p.victims = append(p.victims, victim)
		d.mu.Unlock()
		if gone {
			return nil
		}
	}
	d.h.EventRecorder().WithLogger(klog.FromContext(ctx)).Eventf(victim, by.object, v1.EventTypeNormal, "Preempted", "Preempting", "%s", note)
	return nil
}

// takeBack stops the binding of a pod that has not been bound yet.
func (d *DefaultPreemption) takeBack(victim *v1.Pod) bool {
	if w := d.h.GetWaitingPod(victim.UID); w != nil {
		return w.Preempt(d.Name(), "preempted")
	}
	b := d.h.GetPodInPreBind(victim.UID)
	return b != nil && b.CancelPod("preempted by "+d.Name())
}

func (d *DefaultPreemption) patch(ctx context.Context, pod *v1.Pod, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = d.h.ClientSet().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
