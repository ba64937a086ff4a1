package plugins

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/scheduler/framework"
)

const (
	reasonPodAffinity     = "node(s) didn't match pod affinity rules"
	reasonPodAntiAffinity = "node(s) didn't match pod anti-affinity rules"
	reasonExistingAnti    = "node(s) didn't satisfy existing pods anti-affinity rules"
)

// InterPodAffinity keeps pods together and apart, as their affinity and anti-affinity to each other
// says, within the domains of a topology key: nodes with the same value of a label.
type InterPodAffinity struct {
	hardWeight     int64
	ignoreExisting bool
	nodes          fwk.NodeInfoLister
	namespaces     corelisters.NamespaceLister
	parallel       fwk.Parallelizer
	asked          tallies[domain] // by terms of pods that are to be scheduled
	met            tallies[domain] // by pods that terms of others may match
	weighed        tallies[domain]
}

func newInterPodAffinity(_ context.Context, args *configv1.InterPodAffinityArgs, h fwk.Handle) (fwk.Plugin, error) {
	hard := ptr.Deref(args.HardPodAffinityWeight, 1)
	if hard < 0 || hard > 100 {
		return nil, fmt.Errorf("hardPodAffinityWeight: Invalid value: %d: not in valid range [0-100]", hard)
	}
	return &InterPodAffinity{
		hardWeight: int64(hard), ignoreExisting: args.IgnorePreferredTermsOfExistingPods,
		nodes: h.SnapshotSharedLister().NodeInfos(), parallel: h.Parallelizer(),
		namespaces: h.SharedInformerFactory().Core().V1().Namespaces().Lister(),
	}, nil
}

// Name returns upstream's name.
func (*InterPodAffinity) Name() string { return "InterPodAffinity" }

const (
	podAffinityKey      fwk.StateKey = "InterPodAffinity"
	podAffinityScoreKey fwk.StateKey = "InterPodAffinity/score"
)

// domain is a value of a topology key.
type domain struct{ key, value string }

// counts has a number for each domain that has any: what is there, and what AddPod and RemovePod have
// added to it.
type counts struct {
	there map[domain]sum
	more  map[domain]int64 // nil if nothing
}

func (c *counts) in(d domain) int64 { return c.there[d].n + c.more[d] }

// none reports whether there is nothing in any domain.
func (c *counts) none() bool {
	if len(c.more) == 0 {
		return len(c.there) == 0
	}
	for d := range c.there {
		if c.in(d) > 0 {
			return false
		}
	}
	for d := range c.more {
		if c.in(d) > 0 {
			return false
		}
	}
	return true
}

func (c *counts) add(key string, node *v1.Node, n int64) {
	value, ok := node.Labels[key]
	if !ok {
		return
	}
	if c.more == nil {
		c.more = map[domain]int64{}
	}
	c.more[domain{key, value}] += n
}

// podAffinityState counts pods that matter to the one that is to be scheduled, by domain.
type podAffinityState struct {
	pod       *v1.Pod
	namespace labels.Set // the labels of the pod's namespace
	affinity  []fwk.AffinityTerm
	anti      []fwk.AffinityTerm

	friends counts // pods that match all terms of the affinity
	foes    counts // pods that match a term of the anti-affinity
	hostile counts // pods whose own anti-affinity matches this one
	// keys are the topology keys of the hostile ones.
	keys []string
}

// Clone copies what can change.
func (s *podAffinityState) Clone() fwk.StateData {
	c := *s
	c.friends.more, c.foes.more, c.hostile.more = maps.Clone(s.friends.more), maps.Clone(s.foes.more), maps.Clone(s.hostile.more)
	return &c
}

// count counts a pod on a node n times; -1 takes it away.
func (s *podAffinityState) count(p fwk.PodInfo, node *v1.Node, n int64) {
	s.isFriend(p, func(key string) { s.friends.add(key, node, n) })
	s.isFoe(p, func(key string) { s.foes.add(key, node, n) })
	s.isHostile(p, func(key string) {
		s.hostile.add(key, node, n)
		if !slices.Contains(s.keys, key) {
			s.keys = append(slices.Clone(s.keys), key)
		}
	})
}

// isFriend, isFoe and isHostile call found with the topology key of every term by which a pod is one.

func (s *podAffinityState) isFriend(p fwk.PodInfo, found func(key string)) {
	if matchesAll(s.affinity, p.GetPod(), nil) {
		for i := range s.affinity {
			found(s.affinity[i].TopologyKey)
		}
	}
}

func (s *podAffinityState) isFoe(p fwk.PodInfo, found func(key string)) {
	for i := range s.anti {
		if s.anti[i].Matches(p.GetPod(), nil) {
			found(s.anti[i].TopologyKey)
		}
	}
}

func (s *podAffinityState) isHostile(p fwk.PodInfo, found func(key string)) {
	theirs := p.GetRequiredAntiAffinityTerms()
	for i := range theirs {
		if theirs[i].Matches(s.pod, s.namespace) {
			found(theirs[i].TopologyKey)
		}
	}
}

// matchesAll reports whether a pod matches every one of the terms, of which there must be some.
func matchesAll(terms []fwk.AffinityTerm, pod *v1.Pod, namespace labels.Set) bool {
	for i := range terms {
		if !terms[i].Matches(pod, namespace) {
			return false
		}
	}
	return len(terms) > 0
}

// resolve replaces the namespace selectors of the terms by the namespaces that they select now, so
// that the labels of other pods' namespaces need not be looked up for each of them.
func (a *InterPodAffinity) resolve(term fwk.AffinityTerm) (fwk.AffinityTerm, error) {
	if term.NamespaceSelector.Empty() {
		return term, nil // all of them
	}
	selected, err := a.namespaces.List(term.NamespaceSelector)
	if err != nil {
		return term, err
	}
	term.Namespaces = sets.New(term.Namespaces.UnsortedList()...)
	for _, ns := range selected {
		term.Namespaces.Insert(ns.Name)
	}
	term.NamespaceSelector = labels.Nothing()
	return term, nil
}

func (a *InterPodAffinity) resolveAll(terms []fwk.AffinityTerm) ([]fwk.AffinityTerm, error) {
	out := slices.Clone(terms)
	for i := range out {
		var err error
		if out[i], err = a.resolve(out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// labelsOf returns the labels of a namespace; none if it is not known yet.
func (a *InterPodAffinity) labelsOf(namespace string) labels.Set {
	ns, err := a.namespaces.Get(namespace)
	if err != nil {
		return nil
	}
	return ns.Labels
}

// PreFilter counts the pods that matter.
func (a *InterPodAffinity) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	info, err := framework.InfoOf(state, pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	s := &podAffinityState{pod: pod, namespace: a.labelsOf(pod.Namespace)}
	if s.affinity, err = a.resolveAll(info.GetRequiredAffinityTerms()); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if s.anti, err = a.resolveAll(info.GetRequiredAntiAffinityTerms()); err != nil {
		return nil, fwk.AsStatus(err)
	}
	keep := state.IsPodGroupSchedulingCycle()
	if s.friends.there, err = a.ask(ctx, keep, "friends", s.affinity, s.isFriend); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if s.foes.there, err = a.ask(ctx, keep, "foes", s.anti, s.isFoe); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if s.hostile.there, err = a.meet(ctx, keep, s); err != nil {
		return nil, fwk.AsStatus(err)
	}
	s.keys = keysOf(s.hostile.there)
	if len(s.affinity)+len(s.anti)+len(s.keys) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(podAffinityKey, s)
	return nil, nil
}

// ask counts the pods that are what a pod's own terms ask for.
func (a *InterPodAffinity) ask(ctx context.Context, keep bool, what string, terms []fwk.AffinityTerm, is func(fwk.PodInfo, func(key string))) (map[domain]sum, error) {
	if len(terms) == 0 {
		return nil, nil
	}
	return a.asked.get(ctx, what+" "+keyOf(terms), keep, a.nodes, a.nodes.List, a.parallel, a.Name(), each(fwk.NodeInfo.GetPods, is))
}

// meet counts the pods whose own anti-affinity matches the pod.
func (a *InterPodAffinity) meet(ctx context.Context, keep bool, s *podAffinityState) (map[domain]sum, error) {
	nodes, err := a.nodes.HavePodsWithRequiredAntiAffinityList()
	if err != nil || len(nodes) == 0 {
		return nil, err
	}
	return a.met.get(ctx, s.self(), keep, a.nodes, a.nodes.HavePodsWithRequiredAntiAffinityList, a.parallel, a.Name(),
		each(fwk.NodeInfo.GetPodsWithRequiredAntiAffinity, s.isHostile))
}

// each returns what a node adds if every one of its pods is looked at.
func each(there func(fwk.NodeInfo) []fwk.PodInfo, is func(fwk.PodInfo, func(key string))) func(fwk.NodeInfo) []share[domain] {
	return func(n fwk.NodeInfo) (out []share[domain]) {
		for _, p := range there(n) {
			is(p, func(key string) { out = gather(out, key, n.Node(), 1) })
		}
		return out
	}
}

// keysOf returns the topology keys of the domains.
func keysOf(sums map[domain]sum) (keys []string) {
	for d := range sums {
		if !slices.Contains(keys, d.key) {
			keys = append(keys, d.key)
		}
	}
	return keys
}

// gather adds to what a node adds to its domain of a topology key.
func gather(list []share[domain], key string, node *v1.Node, n int64) []share[domain] {
	value, ok := node.Labels[key]
	if !ok {
		return list
	}
	for i := range list {
		if list[i].domain.key == key {
			list[i].n += n
			return list
		}
	}
	return append(list, share[domain]{domain{key, value}, n})
}

// keyOf identifies terms whose namespaces are resolved.
func keyOf(terms []fwk.AffinityTerm) string {
	var b strings.Builder
	for i := range terms {
		t := &terms[i]
		fmt.Fprintf(&b, "%s %t %q %s %v\n", t.TopologyKey, t.NamespaceSelector.Empty(), sets.List(t.Namespaces), t.Selector, selectsNothing(t.Selector))
	}
	return b.String()
}

// selectsNothing tells a selector of nothing from one of everything, which are written alike.
func selectsNothing(s labels.Selector) bool {
	_, selectable := s.Requirements()
	return !selectable
}

// self identifies what the terms of other pods can see of this one.
func (s *podAffinityState) self() string {
	return s.pod.Namespace + "\n" + labels.Set(s.pod.Labels).String() + "\n" + s.namespace.String()
}

// PreFilterExtensions returns the plugin itself.
func (a *InterPodAffinity) PreFilterExtensions() fwk.PreFilterExtensions { return a }

// AddPod counts a pod as being on the node.
func (a *InterPodAffinity) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, add fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
	s, st := framework.ReadState[*podAffinityState](state, podAffinityKey)
	if st.IsSuccess() {
		s.count(add, n.Node(), 1)
	}
	return st
}

// RemovePod counts a pod as being there no more.
func (a *InterPodAffinity) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, remove fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
	s, st := framework.ReadState[*podAffinityState](state, podAffinityKey)
	if st.IsSuccess() {
		s.count(remove, n.Node(), -1)
	}
	return st
}

// Filter looks up the node's domains.
func (a *InterPodAffinity) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	s, st := framework.ReadState[*podAffinityState](state, podAffinityKey)
	if !st.IsSuccess() {
		return st
	}
	labels := node(n).Labels
	if !s.hasFriends(labels) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonPodAffinity)
	}
	for i := range s.anti {
		key := s.anti[i].TopologyKey
		if value, ok := labels[key]; ok && s.foes.in(domain{key, value}) > 0 {
			return fwk.NewStatus(fwk.Unschedulable, reasonPodAntiAffinity)
		}
	}
	for _, key := range s.keys {
		if value, ok := labels[key]; ok && s.hostile.in(domain{key, value}) > 0 {
			return fwk.NewStatus(fwk.Unschedulable, reasonExistingAnti)
		}
	}
	return nil
}

// hasFriends reports whether each term of the affinity is met in the node's domain. The first of a
// group of pods that want to be together may go anywhere.
func (s *podAffinityState) hasFriends(labels map[string]string) bool {
	met := true
	for i := range s.affinity {
		key := s.affinity[i].TopologyKey
		value, ok := labels[key]
		if !ok {
			return false
		}
		met = met && s.friends.in(domain{key, value}) > 0
	}
	return met || s.friends.none() && matchesAll(s.affinity, s.pod, nil)
}

// EventsToRegister returns changes of pods that matter, and of nodes.
func (a *InterPodAffinity) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.UpdatePodLabel | fwk.Delete}, QueueingHintFn: a.hint},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
	}, nil
}

// hint reports whether another pod has become a friend, or is a foe no more, or is not hostile any
// more; or has ceased to be a friend of a pod that is one of its own, and may be the first of its kind now (upstream
// lets that one wait).
func (a *InterPodAffinity) hint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return fwk.Queue, err
	}
	was, is := relation{}, relation{}
	if old, ok := oldObj.(*v1.Pod); ok && old != nil {
		was = a.relate(info, old)
	}
	if now, ok := newObj.(*v1.Pod); ok && now != nil {
		is = a.relate(info, now)
	}
	if was.friend && !is.friend && matchesAll(info.GetRequiredAffinityTerms(), pod, a.labelsOf(pod.Namespace)) {
		return fwk.Queue, nil
	}
	if is.friend && !was.friend || was.foe && !is.foe || was.hostile && !is.hostile {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

type relation struct{ friend, foe, hostile bool }

func (a *InterPodAffinity) relate(info *framework.PodInfo, other *v1.Pod) (r relation) {
	if other.Spec.NodeName == "" && other.Status.NominatedNodeName == "" {
		return r // it is nowhere
	}
	namespace := a.labelsOf(other.Namespace)
	r.friend = matchesAll(info.GetRequiredAffinityTerms(), other, namespace)
	anti := info.GetRequiredAntiAffinityTerms()
	for i := range anti {
		r.foe = r.foe || anti[i].Matches(other, namespace)
	}
	theirs, err := framework.NewPodInfo(other)
	if err != nil {
		return r
	}
	terms := theirs.GetRequiredAntiAffinityTerms()
	for i := range terms {
		r.hostile = r.hostile || terms[i].Matches(info.GetPod(), a.labelsOf(info.GetPod().Namespace))
	}
	return r
}

// podScores has the sum of the weights of what speaks for each domain, and against it.
type podScores struct {
	weighed map[domain]sum
	keys    []string // of the domains
}

// Clone returns the state itself, because it does not change.
func (s *podScores) Clone() fwk.StateData { return s }

// PreScore weighs the preferences of this pod and of those that are there, in both directions.
func (a *InterPodAffinity) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	info, err := framework.InfoOf(state, pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	own := make([]fwk.WeightedAffinityTerm, 0, len(info.GetPreferredAffinityTerms())+len(info.GetPreferredAntiAffinityTerms()))
	own = append(own, info.GetPreferredAffinityTerms()...)
	for _, t := range info.GetPreferredAntiAffinityTerms() {
		t.Weight = -t.Weight
		own = append(own, t)
	}
	var wishes strings.Builder
	for i := range own {
		if own[i].AffinityTerm, err = a.resolve(own[i].AffinityTerm); err != nil {
			return fwk.AsStatus(err)
		}
		fmt.Fprint(&wishes, own[i].Weight, " ", keyOf([]fwk.AffinityTerm{own[i].AffinityTerm}))
	}
	if len(own) == 0 && a.ignoreExisting {
		return fwk.NewStatus(fwk.Skip)
	}
	self := &podAffinityState{pod: pod, namespace: a.labelsOf(pod.Namespace)}
	there, few := fwk.NodeInfo.GetPodsWithAffinity, a.nodes.HavePodsWithAffinityList
	if len(own) > 0 {
		there, few = fwk.NodeInfo.GetPods, a.nodes.List
	} else if nodes, err := few(); err != nil || len(nodes) == 0 {
		return cmp.Or(fwk.AsStatus(err), fwk.NewStatus(fwk.Skip))
	}
	s := &podScores{}
	s.weighed, err = a.weighed.get(ctx, wishes.String()+self.self(), false, a.nodes, few, a.parallel, a.Name(), func(n fwk.NodeInfo) (out []share[domain]) {
		for _, p := range there(n) {
			a.weigh(own, pod, self.namespace, p, func(key string, weight int64) { out = gather(out, key, n.Node(), weight) })
		}
		return out
	})
	if err != nil {
		return fwk.AsStatus(err)
	}
	if len(s.weighed) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	s.keys = keysOf(s.weighed)
	state.Write(podAffinityScoreKey, s)
	return nil
}

// weigh calls found with the topology key and the weight of every preference that a pod meets, or that
// the pod meets that is to be scheduled.
func (a *InterPodAffinity) weigh(own []fwk.WeightedAffinityTerm, pod *v1.Pod, namespace labels.Set, there fwk.PodInfo, found func(key string, weight int64)) {
	meets := func(t *fwk.AffinityTerm, p *v1.Pod, namespace labels.Set, weight int64) {
		if weight != 0 && t.Matches(p, namespace) {
			found(t.TopologyKey, weight)
		}
	}
	for i := range own {
		meets(&own[i].AffinityTerm, there.GetPod(), nil, int64(own[i].Weight))
	}
	required := there.GetRequiredAffinityTerms()
	for i := range required {
		meets(&required[i], pod, namespace, a.hardWeight)
	}
	preferred := there.GetPreferredAffinityTerms()
	for i := range preferred {
		meets(&preferred[i].AffinityTerm, pod, namespace, int64(preferred[i].Weight))
	}
	avoided := there.GetPreferredAntiAffinityTerms()
	for i := range avoided {
		meets(&avoided[i].AffinityTerm, pod, namespace, -int64(avoided[i].Weight))
	}
}

// Score sums up what speaks for the node's domains.
func (a *InterPodAffinity) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	s, st := framework.ReadState[*podScores](state, podAffinityScoreKey)
	if !st.IsSuccess() {
		return 0, st
	}
	var sum int64
	for _, key := range s.keys {
		if value, ok := node(n).Labels[key]; ok {
			sum += s.weighed[domain{key, value}].n
		}
	}
	return sum, nil
}

// ScoreExtensions returns the plugin itself: the sums can be negative.
func (a *InterPodAffinity) ScoreExtensions() fwk.ScoreExtensions { return a }

// NormalizeScore spreads the scores from the lowest to the highest over the whole scale.
func (a *InterPodAffinity) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	if len(scores) == 0 {
		return nil
	}
	lowest, highest := scores[0].Score, scores[0].Score
	for _, s := range scores {
		lowest, highest = min(lowest, s.Score), max(highest, s.Score)
	}
	for i := range scores {
		if highest == lowest {
			scores[i].Score = 0
		} else {
			// With fractions, as upstream computes it: 58 of 100 is 57 then, and the same node is the best one.
			share := float64(scores[i].Score-lowest) / float64(highest-lowest)
			scores[i].Score = int64(float64(fwk.MaxScore) * share)
		}
	}
	return nil
}
