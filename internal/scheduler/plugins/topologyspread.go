package plugins

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"k8s.io/utils/ptr"
	"wherry.dev/internal/scheduler/framework"
)

const (
	reasonSpread      = "node(s) didn't match pod topology spread constraints"
	reasonSpreadLabel = reasonSpread + " (missing required label)"
)

// PodTopologySpread spreads pods evenly over the domains of a topology key, as their
// topologySpreadConstraints say, or those of the profile for pods that have none.
type PodTopologySpread struct {
	defaults []v1.TopologySpreadConstraint
	// systemDefaults means that nodes need not have all keys of the defaults.
	systemDefaults bool
	nodes          fwk.NodeInfoLister
	parallel       fwk.Parallelizer
	counted        tallies[spreadDomain]
	// For the defaults, which count the pods of a service or a workload; nil if there are none.
	services     corelisters.ServiceLister
	controllers  corelisters.ReplicationControllerLister
	replicaSets  appslisters.ReplicaSetLister
	statefulSets appslisters.StatefulSetLister
}

func newPodTopologySpread(_ context.Context, args *configv1.PodTopologySpreadArgs, h fwk.Handle) (fwk.Plugin, error) {
	t := &PodTopologySpread{defaults: args.DefaultConstraints, nodes: h.SnapshotSharedLister().NodeInfos(), parallel: h.Parallelizer()}
	switch args.DefaultingType {
	case configv1.ListDefaulting:
		for i, c := range args.DefaultConstraints {
			if err := validateDefault(c); err != nil {
				return nil, fmt.Errorf("defaultConstraints[%d].%w", i, err)
			}
		}
	case configv1.SystemDefaulting, "":
		if len(args.DefaultConstraints) > 0 {
			return nil, fmt.Errorf("defaultConstraints: Invalid value: when .defaultingType is %s", configv1.SystemDefaulting)
		}
		t.systemDefaults = true
		t.defaults = []v1.TopologySpreadConstraint{
			{TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 3},
			{TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.ScheduleAnyway, MaxSkew: 5},
		}
	default:
		return nil, fmt.Errorf("defaultingType: Unsupported value: %q: supported values: %q, %q", args.DefaultingType, configv1.SystemDefaulting, configv1.ListDefaulting)
	}
	if len(t.defaults) > 0 {
		f := h.SharedInformerFactory()
		t.services = f.Core().V1().Services().Lister()
		t.controllers = f.Core().V1().ReplicationControllers().Lister()
		t.replicaSets = f.Apps().V1().ReplicaSets().Lister()
		t.statefulSets = f.Apps().V1().StatefulSets().Lister()
	}
	return t, nil
}

func validateDefault(c v1.TopologySpreadConstraint) error {
	switch {
	case c.MaxSkew <= 0:
		return fmt.Errorf("maxSkew: Invalid value: %d: not in valid range (0, inf)", c.MaxSkew)
	case c.TopologyKey == "":
		return fmt.Errorf("topologyKey: Required value: can not be empty")
	case c.WhenUnsatisfiable != v1.DoNotSchedule && c.WhenUnsatisfiable != v1.ScheduleAnyway:
		return fmt.Errorf("whenUnsatisfiable: Unsupported value: %q: supported values: %q, %q", c.WhenUnsatisfiable, v1.DoNotSchedule, v1.ScheduleAnyway)
	case c.LabelSelector != nil:
		return fmt.Errorf("labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod")
	}
	return nil
}

// Name returns upstream's name.
func (*PodTopologySpread) Name() string { return "PodTopologySpread" }

const (
	spreadKey      fwk.StateKey = "PodTopologySpread"
	spreadScoreKey fwk.StateKey = "PodTopologySpread/score"
)

// constraint is a spread constraint with its defaults and its selector.
type constraint struct {
	maxSkew     int
	minDomains  int
	key         string
	selector    labels.Selector
	self        bool // the pod itself is selected
	alike       bool // the selector is that of the first constraint
	honorNodes  bool // the pod's node affinity limits the nodes that count
	honorTaints bool // and so do taints
}

// counts reports whether a node counts among those over which the pod is spread.
func (c *constraint) counts(ctx context.Context, pod *v1.Pod, affinity nodeaffinity.RequiredNodeAffinity, n *v1.Node) bool {
	if c.honorNodes {
		if ok, err := affinity.Match(n); !ok || err != nil {
			return false
		}
	}
	if !c.honorTaints {
		return true
	}
	repels := func(t *v1.Taint) bool {
		return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
	}
	_, repelled := corev1.FindMatchingUntoleratedTaint(klog.FromContext(ctx), n.Spec.Taints, pod.Spec.Tolerations, repels, true)
	return !repelled
}

// constraints returns those of the pod, or the profile's, that are to be treated in this way.
func (t *PodTopologySpread) constraints(pod *v1.Pod, when v1.UnsatisfiableConstraintAction) ([]constraint, error) {
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		out, err := parse(pod.Spec.TopologySpreadConstraints, pod, when)
		for i := range out {
			out[i].self = out[i].selector.Matches(labels.Set(pod.Labels))
		}
		return out, err
	}
	out, err := parse(t.defaults, pod, when)
	if err != nil || len(out) == 0 {
		return nil, err
	}
	selector := t.selectorOf(pod)
	if selector.Empty() {
		return nil, nil
	}
	for i := range out {
		out[i].selector, out[i].self, out[i].alike = selector, selector.Matches(labels.Set(pod.Labels)), i > 0
	}
	return out, nil
}

func parse(in []v1.TopologySpreadConstraint, pod *v1.Pod, when v1.UnsatisfiableConstraintAction) ([]constraint, error) {
	var out []constraint
	for i := range in {
		c := &in[i]
		if c.WhenUnsatisfiable != when {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("topologySpreadConstraints[%d].labelSelector: %w", i, err)
		}
		out = append(out, constraint{
			maxSkew: int(c.MaxSkew), minDomains: int(ptr.Deref(c.MinDomains, 1)), key: c.TopologyKey,
			selector:    alike(selector, c.MatchLabelKeys, pod),
			honorNodes:  ptr.Deref(c.NodeAffinityPolicy, v1.NodeInclusionPolicyHonor) == v1.NodeInclusionPolicyHonor,
			honorTaints: ptr.Deref(c.NodeTaintsPolicy, v1.NodeInclusionPolicyIgnore) == v1.NodeInclusionPolicyHonor,
		})
	}
	return out, nil
}

// alike narrows a selector down to pods with the same values of some labels (matchLabelKeys).
func alike(selector labels.Selector, keys []string, pod *v1.Pod) labels.Selector {
	same := labels.Set{}
	for _, k := range keys {
		if v, ok := pod.Labels[k]; ok {
			same[k] = v
		}
	}
	requirements, selectable := selector.Requirements()
	if len(same) == 0 || !selectable {
		return selector
	}
	return labels.SelectorFromSet(same).Add(requirements...)
}

// selectorOf returns what selects the pods of the services and of the workload to which the pod
// belongs.
func (t *PodTopologySpread) selectorOf(pod *v1.Pod) labels.Selector {
	all := labels.Set{}
	if services, err := t.services.Services(pod.Namespace).List(labels.Everything()); err == nil {
		for _, s := range services {
			if s.Spec.Selector != nil && labels.Set(s.Spec.Selector).AsSelectorPreValidated().Matches(labels.Set(pod.Labels)) {
				maps.Copy(all, s.Spec.Selector)
			}
		}
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return all.AsSelector()
	}
	var workload *metav1.LabelSelector
	switch schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind) {
	case v1.SchemeGroupVersion.WithKind("ReplicationController"):
		if rc, err := t.controllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
			maps.Copy(all, rc.Spec.Selector)
		}
	case appsv1.SchemeGroupVersion.WithKind("ReplicaSet"):
		if rs, err := t.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			workload = rs.Spec.Selector
		}
	case appsv1.SchemeGroupVersion.WithKind("StatefulSet"):
		if ss, err := t.statefulSets.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			workload = ss.Spec.Selector
		}
	}
	selector := all.AsSelector()
	if workload == nil {
		return selector
	}
	if s, err := metav1.LabelSelectorAsSelector(workload); err == nil {
		if requirements, ok := s.Requirements(); ok {
			return selector.Add(requirements...)
		}
	}
	return selector
}

// hasKeys reports whether the node has every constraint's topology key.
func hasKeys(n *v1.Node, constraints []constraint) bool {
	for i := range constraints {
		if _, ok := n.Labels[constraints[i].key]; !ok {
			return false
		}
	}
	return true
}

// matching counts the pods that are selected, except for those that are going.
func matching(pods []fwk.PodInfo, selector labels.Selector, namespace string) int {
	if selector.Empty() {
		return 0
	}
	n := 0
	for _, p := range pods {
		pod := p.GetPod()
		if pod.DeletionTimestamp == nil && pod.Namespace == namespace && selector.Matches(labels.Set(pod.Labels)) {
			n++
		}
	}
	return n
}

// spreadDomain is a domain of one of the constraints of a pod.
type spreadDomain struct {
	constraint int
	value      string
}

// spreadState has, for each constraint, the number of pods in each domain.
type spreadState struct {
	constraints []constraint
	affinity    nodeaffinity.RequiredNodeAffinity
	counted     map[spreadDomain]sum   // what is there
	more        map[spreadDomain]int64 // what AddPod and RemovePod have added; nil if nothing
	domains     []int                  // the number of domains of each constraint
	fewest      []int64                // pods in any domain of each constraint
}

// Clone copies what can change.
func (s *spreadState) Clone() fwk.StateData {
	c := *s
	c.fewest, c.more = slices.Clone(s.fewest), maps.Clone(s.more)
	return &c
}

func (s *spreadState) in(d spreadDomain) int64 { return s.counted[d].n + s.more[d] }

func (s *spreadState) findFewest() {
	for i := range s.fewest {
		s.fewest[i], s.domains[i] = math.MaxInt32, 0
	}
	for d, there := range s.counted {
		s.domains[d.constraint]++
		s.fewest[d.constraint] = min(s.fewest[d.constraint], there.n+s.more[d])
	}
}

// change counts a pod on a node n times. Pods that are going do not count.
func (s *spreadState) change(ctx context.Context, pod, other *v1.Pod, node *v1.Node, n int64) {
	if other.DeletionTimestamp != nil || other.Namespace != pod.Namespace || !hasKeys(node, s.constraints) {
		return
	}
	for i := range s.constraints {
		c := &s.constraints[i]
		if !c.selector.Matches(labels.Set(other.Labels)) || !c.counts(ctx, pod, s.affinity, node) {
			continue
		}
		d := spreadDomain{i, node.Labels[c.key]}
		before := s.in(d)
		if s.more == nil {
			s.more = map[spreadDomain]int64{}
		}
		s.more[d] += n
		if n < 0 {
			s.fewest[i] = min(s.fewest[i], before+n)
		} else if before == s.fewest[i] {
			s.domains = slices.Clone(s.domains)
			s.findFewest()
		}
	}
}

// PreFilter counts the pods in each domain.
func (t *PodTopologySpread) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	constraints, err := t.constraints(pod, v1.DoNotSchedule)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if len(constraints) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s := &spreadState{
		constraints: constraints, affinity: nodeaffinity.GetRequiredNodeAffinity(pod),
		domains: make([]int, len(constraints)), fewest: make([]int64, len(constraints)),
	}
	q := &spreadQuestion{
		pod: pod, constraints: constraints, affinity: s.affinity, strict: true, keep: state.IsPodGroupSchedulingCycle(),
	}
	if s.counted, err = t.count(ctx, q); err != nil {
		return nil, fwk.AsStatus(err)
	}
	s.findFewest()
	state.Write(spreadKey, s)
	return nil, nil
}

// spreadQuestion is what is to be counted for a pod.
type spreadQuestion struct {
	pod         *v1.Pod
	constraints []constraint
	affinity    nodeaffinity.RequiredNodeAffinity
	strict      bool // nodes must have all keys to count
	keep        bool // the answer is to be kept
	perNode     bool // what has a host name is a node of its own, and counts, whatever the name is
}

// count returns the pods that match each constraint, by domain, on the nodes that count.
func (t *PodTopologySpread) count(ctx context.Context, q *spreadQuestion) (map[spreadDomain]sum, error) {
	key, err := q.key()
	if err != nil {
		return nil, err
	}
	return t.counted.get(ctx, key, q.keep, t.nodes, t.nodes.List, t.parallel, t.Name(), func(n fwk.NodeInfo) []share[spreadDomain] {
		if q.strict && !hasKeys(n.Node(), q.constraints) {
			return nil
		}
		var out []share[spreadDomain]
		selected := -1
		for i := range q.constraints {
			c := &q.constraints[i]
			d := spreadDomain{i, n.Node().Labels[c.key]}
			if q.perNode && c.key == v1.LabelHostname {
				d.value = n.Node().Name
			} else if !c.counts(ctx, q.pod, q.affinity, n.Node()) {
				continue
			}
			if selected < 0 || !c.alike {
				selected = matching(n.GetPods(), c.selector, q.pod.Namespace)
			}
			out = append(out, share[spreadDomain]{d, int64(selected)})
		}
		return out
	})
}

// key identifies everything on which the count depends, besides the nodes.
func (q *spreadQuestion) key() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %t %t", q.pod.Namespace, q.strict, q.perNode)
	nodes, taints := false, false
	for i := range q.constraints {
		c := &q.constraints[i]
		fmt.Fprintf(&b, "\n%s %t %t %s", c.key, c.honorNodes, c.honorTaints, c.selector)
		nodes, taints = nodes || c.honorNodes, taints || c.honorTaints
	}
	part := &v1.PodSpec{}
	if nodes {
		part.NodeSelector = q.pod.Spec.NodeSelector
		if terms := requiredTerms(q.pod); terms != nil {
			part.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		}
	}
	if taints {
		part.Tolerations = q.pod.Spec.Tolerations
	}
	data, err := part.Marshal()
	if err != nil {
		return "", fmt.Errorf("pod %s/%s: %w", q.pod.Namespace, q.pod.Name, err)
	}
	b.WriteByte(0)
	b.Write(data)
	return b.String(), nil
}

// PreFilterExtensions returns the plugin itself.
func (t *PodTopologySpread) PreFilterExtensions() fwk.PreFilterExtensions { return t }

// AddPod counts a pod as being on the node.
func (t *PodTopologySpread) AddPod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, add fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
	s, st := framework.ReadState[*spreadState](state, spreadKey)
	if st.IsSuccess() {
		s.change(ctx, pod, add.GetPod(), n.Node(), 1)
	}
	return st
}

// RemovePod counts a pod as being there no more.
func (t *PodTopologySpread) RemovePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, remove fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
	s, st := framework.ReadState[*spreadState](state, spreadKey)
	if st.IsSuccess() {
		s.change(ctx, pod, remove.GetPod(), n.Node(), -1)
	}
	return st
}

// Filter compares the node's domain with the one that has the fewest pods. If there are fewer domains
// than there must be (minDomains), an empty one is imagined.
func (t *PodTopologySpread) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	s, st := framework.ReadState[*spreadState](state, spreadKey)
	if !st.IsSuccess() {
		return st
	}
	for i := range s.constraints {
		c := &s.constraints[i]
		value, ok := node(n).Labels[c.key]
		if !ok {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonSpreadLabel)
		}
		fewest := s.fewest[i]
		if s.domains[i] < c.minDomains {
			fewest = 0
		}
		number := s.in(spreadDomain{i, value})
		if c.self {
			number++
		}
		if number-fewest > int64(c.maxSkew) {
			return fwk.NewStatus(fwk.Unschedulable, reasonSpread)
		}
	}
	return nil
}

// EventsToRegister returns changes of pods that are counted, and of nodes that count.
func (t *PodTopologySpread) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.UpdatePodLabel | fwk.Delete}, QueueingHintFn: t.afterPod},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.Delete | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint},
			QueueingHintFn: t.afterNode,
		},
	}, nil
}

func (t *PodTopologySpread) afterPod(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	constraints, err := t.constraints(pod, v1.DoNotSchedule)
	if err != nil {
		return fwk.Queue, err
	}
	counted := func(obj any, c *constraint) bool {
		other, ok := obj.(*v1.Pod)
		return ok && other != nil && other.Namespace == pod.Namespace && c.selector.Matches(labels.Set(other.Labels)) &&
			(other.Spec.NodeName != "" || other.Status.NominatedNodeName != "")
	}
	for i := range constraints {
		if counted(oldObj, &constraints[i]) != counted(newObj, &constraints[i]) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

func (t *PodTopologySpread) afterNode(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	constraints, err := t.constraints(pod, v1.DoNotSchedule)
	if err != nil {
		return fwk.Queue, err
	}
	old, _ := oldObj.(*v1.Node)
	now, _ := newObj.(*v1.Node)
	counted := old != nil && hasKeys(old, constraints)
	counts := now != nil && hasKeys(now, constraints)
	if counted != counts {
		return fwk.Queue, nil
	}
	if !counts {
		return fwk.QueueSkip, nil
	}
	moved := func(c constraint) bool { return old.Labels[c.key] != now.Labels[c.key] }
	if slices.ContainsFunc(constraints, moved) || !equality.Semantic.DeepEqual(old.Spec.Taints, now.Spec.Taints) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// spreadScores has what the constraints that are only wishes need.
type spreadScores struct {
	constraints []constraint
	ignored     sets.Set[string]     // nodes without all topology keys
	counted     map[spreadDomain]sum // host names by node
	weights     []float64
}

// Clone returns the state itself, because it does not change.
func (s *spreadScores) Clone() fwk.StateData { return s }

// PreScore counts the pods in each domain.
func (t *PodTopologySpread) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo) *fwk.Status {
	constraints, err := t.constraints(pod, v1.ScheduleAnyway)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if len(constraints) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	strict := len(pod.Spec.TopologySpreadConstraints) > 0 || !t.systemDefaults
	s := &spreadScores{constraints: constraints, ignored: sets.New[string](), weights: make([]float64, len(constraints))}
	domains := map[spreadDomain]bool{} // those that have a node to choose
	sizes := make([]int, len(constraints))
	for _, n := range feasible {
		if strict && !hasKeys(n.Node(), constraints) {
			s.ignored.Insert(n.Node().Name)
			continue
		}
		for i := range constraints {
			if d := (spreadDomain{i, n.Node().Labels[constraints[i].key]}); constraints[i].key != v1.LabelHostname && !domains[d] {
				domains[d] = true
				sizes[i]++
			}
		}
	}
	for i := range constraints {
		if constraints[i].key == v1.LabelHostname {
			sizes[i] = len(feasible) - s.ignored.Len()
		}
		// Else a constraint over few large domains would drown one over many small ones.
		s.weights[i] = math.Log(float64(sizes[i] + 2))
	}
	s.counted, err = t.count(ctx, &spreadQuestion{
		pod: pod, constraints: constraints, affinity: nodeaffinity.GetRequiredNodeAffinity(pod), strict: strict, perNode: true,
	})
	if err != nil {
		return fwk.AsStatus(err)
	}
	state.Write(spreadScoreKey, s)
	return nil
}

// Score returns how many pods there are in the node's domains: the fewer the better.
func (t *PodTopologySpread) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	s, st := framework.ReadState[*spreadScores](state, spreadScoreKey)
	if !st.IsSuccess() || s.ignored.Has(node(n).Name) {
		return 0, st
	}
	var sum float64
	for i := range s.constraints {
		c := &s.constraints[i]
		value, ok := node(n).Labels[c.key]
		if !ok {
			continue
		}
		if c.key == v1.LabelHostname {
			value = node(n).Name
		}
		count := s.counted[spreadDomain{i, value}].n
		// A larger skew that is allowed makes differences matter less.
		sum += float64(count)*s.weights[i] + float64(c.maxSkew-1)
	}
	return int64(math.Round(sum)), nil
}

// ScoreExtensions returns the plugin itself: fewer is better.
func (t *PodTopologySpread) ScoreExtensions() fwk.ScoreExtensions { return t }

// NormalizeScore turns the scale round. Nodes without all topology keys come last.
func (t *PodTopologySpread) NormalizeScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	s, st := framework.ReadState[*spreadScores](state, spreadScoreKey)
	if !st.IsSuccess() {
		return st
	}
	lowest, highest := int64(math.MaxInt64), int64(0)
	for _, sc := range scores {
		if !s.ignored.Has(sc.Name) {
			lowest, highest = min(lowest, sc.Score), max(highest, sc.Score)
		}
	}
	for i := range scores {
		switch {
		case s.ignored.Has(scores[i].Name):
			scores[i].Score = 0
		case highest == 0:
			scores[i].Score = fwk.MaxScore
		default:
			scores[i].Score = fwk.MaxScore * (highest + lowest - scores[i].Score) / highest
		}
	}
	return nil
}
