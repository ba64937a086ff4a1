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
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
// budgets. The pod is nominated for that node and waits until they are gone.
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

// preemption is what is known of the end of a pod's victims, until a minute later.
type preemption struct {
	node    string
	done    bool      // all are deleted as far as the API is concerned
	victims []*v1.Pod // that are deleted there
	asked   bool      // the queue has asked for the pod meanwhile
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
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for the preemption for this pod to be finished")
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

// EventsToRegister returns the end of pods, which opens PreEnqueue's gate if they were victims. The end of the
// preemption does so, too.
func (d *DefaultPreemption) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{framework.Event(fwk.AssignedPod, fwk.Delete, d.hint)}, nil
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
	if st.IsSuccess() {
		return r, st
	}
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
	d.start(ctx, pod, best)
	return nominate(best.node), nil
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
	if ptr.Deref(pod.Spec.PreemptionPolicy, v1.PreemptLowerPriority) == v1.PreemptNever {
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
	victims := d.victims(pod, node)
	for _, p := range n.GetPods() {
		if less(p.GetPod(), pod) && preempted(p.GetPod()) || victims.Has(p.GetPod().UID) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

// victims returns whom the pod's last preemption has ended on the node. The scheduler may not have seen it yet.
func (d *DefaultPreemption) victims(pod *v1.Pod, node string) sets.Set[types.UID] {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.preempting[pod.UID]
	if p == nil || p.node != node {
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
	victims    []*v1.Pod
	violations int // of disruption budgets
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
			if t.status.IsSuccess() || t.status.IsRejected() {
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

// less reports whether a has a lower priority than b.
func less(a, b *v1.Pod) bool { return framework.Priority(a) < framework.Priority(b) }

// tried is what is found out about a node: the candidate, or why it is none. The budgets count for a candidate only.
type tried struct {
	candidate candidate
	status    *fwk.Status
	budgets   *budgets
}

// try finds the victims on one node: first all pods of a lower priority go, then as many as possible
// come back, those that a budget protects first, and the more important ones before the others.
func (d *DefaultPreemption) try(ctx context.Context, state fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo, budgets *budgets) (candidate, *fwk.Status) {
	var lower []fwk.PodInfo
	for _, p := range n.GetPods() {
		if less(p.GetPod(), pod) {
			lower = append(lower, p)
		}
	}
	if len(lower) == 0 {
		return candidate{}, noVictims
	}
	state, n = state.Clone(), n.Snapshot()
	remove := func(p fwk.PodInfo) *fwk.Status {
		if err := n.RemovePod(klog.FromContext(ctx), p.GetPod()); err != nil {
			return fwk.AsStatus(err)
		}
		return d.h.RunPreFilterExtensionRemovePod(ctx, state, pod, p, n)
	}
	for _, p := range lower {
		if st := remove(p); !st.IsSuccess() {
			return candidate{}, st
		}
	}
	if st := d.h.RunFilterPluginsWithNominatedPods(ctx, state, pod, n); !st.IsSuccess() {
		return candidate{}, st
	}
	slices.SortStableFunc(lower, func(a, b fwk.PodInfo) int { return compareImportance(a.GetPod(), b.GetPod()) })
	protected, free := split(lower, budgets)
	var victims []*v1.Pod
	violations := 0
	for i, p := range append(protected, free...) {
		n.AddPodInfo(p)
		if st := d.h.RunPreFilterExtensionAddPod(ctx, state, pod, p, n); !st.IsSuccess() {
			return candidate{}, st
		}
		if d.h.RunFilterPluginsWithNominatedPods(ctx, state, pod, n).IsSuccess() {
			continue
		}
		if st := remove(p); !st.IsSuccess() {
			return candidate{}, st
		}
		victims = append(victims, p.GetPod())
		if i < len(protected) {
			violations++
		}
	}
	if len(victims) == 0 {
		return candidate{}, fwk.AsStatus(fmt.Errorf("expected at least one victim pod on node %q", n.Node().Name))
	}
	return newCandidate(n.Node().Name, victims, violations), nil
}

// compareImportance puts the more important pod first: the one of the higher priority, and then the
// one that has run longer.
func compareImportance(a, b *v1.Pod) int {
	if pa, pb := framework.Priority(a), framework.Priority(b); pa != pb {
		return cmp.Compare(pb, pa)
	}
	return startOf(a).Compare(startOf(b))
}

// startOf returns when the pod has started: after all others if it has not.
func startOf(pod *v1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return never
}

var never = time.Unix(math.MaxInt32*1000, 0)

// budgets are disruption budgets, and what each of them selects.
type budgets struct {
	all       []*policyv1.PodDisruptionBudget
	selectors []labels.Selector
}

// listBudgets returns the same ones as last time if no budget has changed.
func (d *DefaultPreemption) listBudgets() (*budgets, error) {
	all, err := d.budgets.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *policyv1.PodDisruptionBudget) int { return cmp.Compare(a.UID, b.UID) })
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil && slices.Equal(d.last.all, all) {
		return d.last, nil
	}
	d.last = &budgets{all: all}
	for _, b := range all {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() {
			selector = labels.Nothing()
		}
		d.last.selectors = append(d.last.selectors, selector)
	}
	return d.last, nil
}

// split returns the pods whose end a disruption budget does not allow, and the others.
func split(pods []fwk.PodInfo, budgets *budgets) (protected, free []fwk.PodInfo) {
	left := make([]int32, len(budgets.all))
	for i, b := range budgets.all {
		left[i] = b.Status.DisruptionsAllowed
	}
	for _, p := range pods {
		pod := p.GetPod()
		violated := false
		for i, b := range budgets.all {
			if b.Namespace != pod.Namespace || len(pod.Labels) == 0 || !budgets.selectors[i].Matches(labels.Set(pod.Labels)) {
				continue
			}
			if _, counted := b.Status.DisruptedPods[pod.Name]; counted {
				continue
			}
			left[i]--
			violated = violated || left[i] < 0
		}
		if violated {
			protected = append(protected, p)
		} else {
			free = append(free, p)
		}
	}
	return protected, free
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

// start ends the victims. The scheduler goes on meanwhile; the pod is not tried before this is done,
// and at once if it fails.
func (d *DefaultPreemption) start(ctx context.Context, pod *v1.Pod, c candidate) {
	preemptionVictims.Observe(float64(len(c.victims)))
	p := &preemption{node: c.node}
	d.mu.Lock()
	d.preempting[pod.UID] = p
	d.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	go func() {
		log := klog.FromContext(ctx)
		began := time.Now()
		err := errors.Join(d.denominate(ctx, pod, c.node), d.preempt(ctx, pod, c, p))
		observePreemption(err, began)
		if err != nil {
			log.Error(err, "Cannot preempt all victims; the pod is tried again", "node", c.node)
			d.forget(log, pod, p)
			return
		}
		d.mu.Lock()
		p.done = true
		again := p.asked && d.overLocked(p)
		d.mu.Unlock()
		if again {
			d.activate(log, pod)
		}
		time.AfterFunc(preemptionSeen, func() { d.forget(log, pod, p) })
	}()
}

// forget forgets a preemption of the pod, unless there is a newer one. The pod does not wait for it any more.
func (d *DefaultPreemption) forget(log klog.Logger, pod *v1.Pod, p *preemption) {
	d.mu.Lock()
	last := d.preempting[pod.UID] == p
	waits := last && (!p.done || !d.overLocked(p))
	if last {
		delete(d.preempting, pod.UID)
	}
	d.mu.Unlock()
	if waits {
		d.activate(log, pod)
	}
}

func (d *DefaultPreemption) activate(log klog.Logger, pod *v1.Pod) {
	d.h.Activate(log, map[string]*v1.Pod{pod.Namespace + "/" + pod.Name: pod})
}

// denominate takes the nomination from pods of a lower priority for the same node, so that they look
// for another place.
func (d *DefaultPreemption) denominate(ctx context.Context, pod *v1.Pod, node string) error {
	var errs []error
	for _, n := range d.h.NominatedPodsForNode(node) {
		other := n.GetPod()
		if framework.Priority(other) >= framework.Priority(pod) {
			continue
		}
		d.h.DeleteNominatedPodIfExists(other)
		errs = append(errs, d.patch(ctx, other, map[string]any{"nominatedNodeName": nil}))
		d.activate(klog.FromContext(ctx), other)
	}
	return errors.Join(errs...)
}

func (d *DefaultPreemption) preempt(ctx context.Context, pod *v1.Pod, c candidate, p *preemption) error {
	errs := make([]error, len(c.victims))
	d.h.Parallelizer().Until(ctx, len(c.victims), func(i int) {
		if c.victims[i].DeletionTimestamp == nil {
			errs[i] = d.end(ctx, pod, c.victims[i], p)
		}
	}, d.Name())
	return errors.Join(errs...)
}

// end ends one victim. One that is only about to be bound goes back to the queue.
func (d *DefaultPreemption) end(ctx context.Context, pod, victim *v1.Pod, p *preemption) error {
	note := fmt.Sprintf("Preempted by pod %v on node %v", pod.UID, p.node)
	if d.takeBack(victim) {
		note += " (in kube-scheduler memory)."
	} else {
		condition := v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
			Message:            pod.Spec.SchedulerName + ": preempting to accommodate a higher priority pod",
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
	d.h.EventRecorder().WithLogger(klog.FromContext(ctx)).Eventf(victim, pod, v1.EventTypeNormal, "Preempted", "Preempting", "%s", note)
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
