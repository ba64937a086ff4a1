package plugins

import (
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
	// The search ends when it has found as many nodes as these say; see candidates.
	percentage, least int

	mu sync.Mutex
	// preempting has the pods whose victims are being ended; true means that the queue has asked
	// meanwhile.
	preempting map[types.UID]bool
}

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
		percentage: int(percentage), least: int(least), preempting: map[types.UID]bool{},
	}, nil
}

// Name returns upstream's name.
func (*DefaultPreemption) Name() string { return "DefaultPreemption" }

// PreEnqueue keeps a pod out of the queue while its victims are being ended: it could only fail again.
func (d *DefaultPreemption) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.preempting[pod.UID]; !ok {
		return nil
	}
	d.preempting[pod.UID] = true
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for the preemption for this pod to be finished")
}

// EventsToRegister returns none: PreEnqueue's gate is opened by the end of the preemption.
func (*DefaultPreemption) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
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
	budgets, err := d.budgets.List(labels.Everything())
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
			c := candidate{node: node, victims: v.Pods, violations: int(v.NumPDBViolations)}
			slices.SortStableFunc(c.victims, compareImportance)
			found = append(found, c)
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
	for _, p := range n.GetPods() {
		if framework.Priority(p.GetPod()) < framework.Priority(pod) && preempted(p.GetPod()) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
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
}

// candidates tries the nodes, beginning at a random one, until it has found a tenth of them (by
// default, and at least a hundred) of which one breaks no budget. It returns why the others are of no
// use.
func (d *DefaultPreemption) candidates(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget) ([]candidate, []*fwk.Status, error) {
	if len(nodes) == 0 {
		return nil, nil, nil
	}
	search, stop := context.WithCancel(ctx)
	defer stop()
	wanted := max(len(nodes)*d.percentage/100, d.least)
	first := rand.IntN(len(nodes)) //nolint:gosec // only so that not always the same nodes are tried
	var mu sync.Mutex
	var found []candidate
	harmless := false
	var errs []error
	statuses := make([]*fwk.Status, len(nodes)) // each written by who looks at the node
	d.h.Parallelizer().Until(search, len(nodes), func(i int) {
		n := nodes[(first+i)%len(nodes)]
		if !slices.ContainsFunc(n.GetPods(), func(p fwk.PodInfo) bool { return less(p.GetPod(), pod) }) {
			statuses[i] = noVictims
			return
		}
		c, st := d.try(search, state.Clone(), pod, n.Snapshot(), budgets)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case st.IsSuccess():
			found = append(found, c)
			harmless = harmless || c.violations == 0
			if harmless && len(found) >= wanted {
				stop()
			}
		case st.IsRejected():
			statuses[i] = st
		case search.Err() == nil:
			errs = append(errs, st.AsError())
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

// try finds the victims on one node that has less important pods: first all pods of a lower priority go, then as many as possible
// come back, those that a budget protects first, and the more important ones before the others.
func (d *DefaultPreemption) try(ctx context.Context, state fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget) (candidate, *fwk.Status) {
	var lower []fwk.PodInfo
	for _, p := range n.GetPods() {
		if less(p.GetPod(), pod) {
			lower = append(lower, p)
		}
	}
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
	c := candidate{node: n.Node().Name}
	protected, free := split(lower, budgets)
	for i, p := range slices.Concat(protected, free) {
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
		c.victims = append(c.victims, p.GetPod())
		if i < len(protected) {
			c.violations++
		}
	}
	if len(c.victims) == 0 {
		return c, fwk.AsStatus(fmt.Errorf("expected at least one victim pod on node %q", c.node))
	}
	slices.SortStableFunc(c.victims, compareImportance)
	return c, nil
}

// compareImportance puts the more important pod first: the one of the higher priority, and then the
// one that has run longer.
func compareImportance(a, b *v1.Pod) int {
	if pa, pb := framework.Priority(a), framework.Priority(b); pa != pb {
		return int(pb) - int(pa)
	}
	return startOf(a).Compare(startOf(b))
}

func startOf(pod *v1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return time.Now() // it has not started yet
}

// split returns the pods whose end a disruption budget does not allow, and the others.
func split(pods []fwk.PodInfo, budgets []*policyv1.PodDisruptionBudget) (protected, free []fwk.PodInfo) {
	left := make([]int32, len(budgets))
	for i, b := range budgets {
		left[i] = b.Status.DisruptionsAllowed
	}
	for _, p := range pods {
		pod := p.GetPod()
		violated := false
		for i, b := range budgets {
			if b.Namespace != pod.Namespace || len(pod.Labels) == 0 {
				continue
			}
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err != nil || selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
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
	return cmpOr(
		a.violations-b.violations,
		int(framework.Priority(a.victims[0]))-int(framework.Priority(b.victims[0])),
		a.sum()-b.sum(),
		len(a.victims)-len(b.victims),
		b.earliest().Compare(a.earliest()),
	)
}

func cmpOr(values ...int) int {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}

// sum returns the sum of the priorities, raised so that none is negative: more victims must never
// look better than fewer.
func (c candidate) sum() int {
	sum := 0
	for _, v := range c.victims {
		sum += int(framework.Priority(v)) + math.MaxInt32 + 1
	}
	return sum
}

// earliest returns the earliest start of the victims with the highest priority.
func (c candidate) earliest() time.Time {
	at := startOf(c.victims[0])
	for _, v := range c.victims {
		if s := startOf(v); framework.Priority(v) == framework.Priority(c.victims[0]) && s.Before(at) {
			at = s
		}
	}
	return at
}

// start ends the victims. The scheduler goes on meanwhile; the pod is not tried before this is done,
// and at once if it fails.
func (d *DefaultPreemption) start(ctx context.Context, pod *v1.Pod, c candidate) {
	preemptionVictims.Observe(float64(len(c.victims)))
	d.mu.Lock()
	d.preempting[pod.UID] = false
	d.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	go func() {
		log := klog.FromContext(ctx)
		began := time.Now()
		err := errors.Join(d.denominate(ctx, pod, c.node), d.preempt(ctx, pod, c))
		observePreemption(err, began)
		if err != nil {
			log.Error(err, "Cannot preempt all victims; the pod is tried again", "node", c.node)
		}
		d.mu.Lock()
		asked := d.preempting[pod.UID]
		delete(d.preempting, pod.UID)
		d.mu.Unlock()
		if asked || err != nil {
			d.h.Activate(log, map[string]*v1.Pod{pod.Namespace + "/" + pod.Name: pod})
		}
	}()
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
		d.h.Activate(klog.FromContext(ctx), map[string]*v1.Pod{other.Namespace + "/" + other.Name: other})
	}
	return errors.Join(errs...)
}

func (d *DefaultPreemption) preempt(ctx context.Context, pod *v1.Pod, c candidate) error {
	errs := make([]error, len(c.victims))
	d.h.Parallelizer().Until(ctx, len(c.victims), func(i int) {
		if c.victims[i].DeletionTimestamp == nil {
			errs[i] = d.end(ctx, pod, c.victims[i], c.node)
		}
	}, d.Name())
	return errors.Join(errs...)
}

// end ends one victim. One that is only about to be bound goes back to the queue.
func (d *DefaultPreemption) end(ctx context.Context, pod, victim *v1.Pod, node string) error {
	note := fmt.Sprintf("Preempted by pod %v on node %v", pod.UID, node)
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
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // it is gone, or another pod has its name
		}
		if err != nil {
			return fmt.Errorf("preempt pod %s/%s: %w", victim.Namespace, victim.Name, err)
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
