package plugins

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

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

// counts has a number for each domain that has any.
type counts map[domain]int64

func (c counts) add(key string, node *v1.Node, n int64) {
	value, ok := node.Labels[key]
	if !ok {
		return
	}
	d := domain{key, value}
	if c[d] += n; c[d] == 0 {
		delete(c, d)
	}
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
}

// Clone copies the counts.
func (s *podAffinityState) Clone() fwk.StateData {
	c := *s
	c.friends, c.foes, c.hostile = maps.Clone(s.friends), maps.Clone(s.foes), maps.Clone(s.hostile)
	return &c
}

// count counts a pod on a node n times; -1 takes it away.
func (s *podAffinityState) count(p fwk.PodInfo, node *v1.Node, n int64) {
	s.matters(p, func(c counts, key string) { c.add(key, node, n) })
}

// matters calls found for every term by which a pod matters, with its topology key and what is to count it.
func (s *podAffinityState) matters(p fwk.PodInfo, found func(counts, string)) {
	if matchesAll(s.affinity, p.GetPod(), nil) {
		for i := range s.affinity {
			found(s.friends, s.affinity[i].TopologyKey)
		}
	}
	for i := range s.anti {
		if s.anti[i].Matches(p.GetPod(), nil) {
			found(s.foes, s.anti[i].TopologyKey)
		}
	}
	theirs := p.GetRequiredAntiAffinityTerms()
	for i := range theirs {
		if theirs[i].Matches(s.pod, s.namespace) {
			found(s.hostile, theirs[i].TopologyKey)
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

// PreFilter counts the pods that matter. Without terms of its own, only nodes with hostile pods need
// looking at.
func (a *InterPodAffinity) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, all []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	info, err := framework.InfoOf(state, pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	s := &podAffinityState{pod: pod, namespace: a.labelsOf(pod.Namespace), friends: counts{}, foes: counts{}, hostile: counts{}}
	if s.affinity, err = a.resolveAll(info.GetRequiredAffinityTerms()); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if s.anti, err = a.resolveAll(info.GetRequiredAntiAffinityTerms()); err != nil {
		return nil, fwk.AsStatus(err)
	}
	there := fwk.NodeInfo.GetPods
	nodes := all
	if len(s.affinity)+len(s.anti) == 0 {
		there = fwk.NodeInfo.GetPodsWithRequiredAntiAffinity
		if nodes, err = a.nodes.HavePodsWithRequiredAntiAffinityList(); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	var mu sync.Mutex // matching is what takes long; few match
	a.parallel.Until(ctx, len(nodes), func(i int) {
		for _, p := range there(nodes[i]) {
			s.matters(p, func(c counts, key string) {
				mu.Lock()
				defer mu.Unlock()
				c.add(key, nodes[i].Node(), 1)
			})
		}
	}, a.Name())
	if len(s.affinity)+len(s.anti)+len(s.hostile) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(podAffinityKey, s)
	return nil, nil
}

// PreFilterExtensions returns the plugin itself.
func (a *InterPodAffinity) PreFilterExtensions() fwk.PreFilterExtensions { return a }

// AddPod counts a pod as being on the node.
func (a *InterPodAffinity) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, add fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
	s, st := read[*podAffinityState](state, podAffinityKey)
	if st.IsSuccess() {
		s.count(add, n.Node(), 1)
	}
	return st
}

// RemovePod counts a pod as being there no more.
func (a *InterPodAffinity) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, remove fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
	s, st := read[*podAffinityState](state, podAffinityKey)
	if st.IsSuccess() {
		s.count(remove, n.Node(), -1)
	}
	return st
}

// Filter looks up the node's domains.
func (a *InterPodAffinity) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	s, st := read[*podAffinityState](state, podAffinityKey)
	if !st.IsSuccess() {
		return st
	}
	labels := node(n).Labels
	if !s.hasFriends(labels) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonPodAffinity)
	}
	if len(s.foes) > 0 {
		for i := range s.anti {
			key := s.anti[i].TopologyKey
			if value, ok := labels[key]; ok && s.foes[domain{key, value}] > 0 {
				return fwk.NewStatus(fwk.Unschedulable, reasonPodAntiAffinity)
			}
		}
	}
	if len(s.hostile) > 0 {
		for key, value := range labels {
			if s.hostile[domain{key, value}] > 0 {
				return fwk.NewStatus(fwk.Unschedulable, reasonExistingAnti)
			}
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
		met = met && s.friends[domain{key, value}] > 0
	}
	return met || len(s.friends) == 0 && matchesAll(s.affinity, s.pod, nil)
}

// EventsToRegister returns changes of pods that matter, and of nodes.
func (a *InterPodAffinity) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.UpdatePodLabel | fwk.Delete}, QueueingHintFn: a.hint},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
	}, nil
}

// hint reports whether another pod has become a friend, or is a foe no more, or is not hostile any
// more.
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

// podScores has the sum of the weights of what speaks for each domain, and against it. The first key
// is a topology key.
type podScores struct{ byKey map[string]map[string]int64 }

// Clone returns the state itself, because it does not change.
func (s *podScores) Clone() fwk.StateData { return s }

func (s *podScores) add(term *fwk.AffinityTerm, pod *v1.Pod, namespace labels.Set, node *v1.Node, weight int64) {
	value, ok := node.Labels[term.TopologyKey]
	if !ok || weight == 0 || !term.Matches(pod, namespace) {
		return
	}
	if s.byKey[term.TopologyKey] == nil {
		s.byKey[term.TopologyKey] = map[string]int64{}
	}
	s.byKey[term.TopologyKey][value] += weight
}

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
	for i := range own {
		if own[i].AffinityTerm, err = a.resolve(own[i].AffinityTerm); err != nil {
			return fwk.AsStatus(err)
		}
	}
	if len(own) == 0 && a.ignoreExisting {
		return fwk.NewStatus(fwk.Skip)
	}
	nodes, err := a.nodes.HavePodsWithAffinityList()
	if len(own) > 0 {
		nodes, err = a.nodes.List()
	}
	if err != nil {
		return fwk.AsStatus(err)
	}
	namespace := a.labelsOf(pod.Namespace)
	total := &podScores{byKey: map[string]map[string]int64{}}
	var mu sync.Mutex
	a.parallel.Until(ctx, len(nodes), func(i int) {
		s := &podScores{byKey: map[string]map[string]int64{}}
		there := nodes[i].GetPodsWithAffinity()
		if len(own) > 0 {
			there = nodes[i].GetPods()
		}
		for _, p := range there {
			a.weigh(s, own, pod, namespace, p, nodes[i].Node())
		}
		if len(s.byKey) > 0 {
			mu.Lock()
			total.merge(s)
			mu.Unlock()
		}
	}, a.Name())
	if len(total.byKey) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(podAffinityScoreKey, total)
	return nil
}

func (s *podScores) merge(o *podScores) {
	for key, values := range o.byKey {
		if s.byKey[key] == nil {
			s.byKey[key] = values
			continue
		}
		for value, n := range values {
			s.byKey[key][value] += n
		}
	}
}

func (a *InterPodAffinity) weigh(s *podScores, own []fwk.WeightedAffinityTerm, pod *v1.Pod, namespace labels.Set, there fwk.PodInfo, node *v1.Node) {
	for i := range own {
		s.add(&own[i].AffinityTerm, there.GetPod(), nil, node, int64(own[i].Weight))
	}
	required := there.GetRequiredAffinityTerms()
	for i := range required {
		s.add(&required[i], pod, namespace, node, a.hardWeight)
	}
	preferred := there.GetPreferredAffinityTerms()
	for i := range preferred {
		s.add(&preferred[i].AffinityTerm, pod, namespace, node, int64(preferred[i].Weight))
	}
	avoided := there.GetPreferredAntiAffinityTerms()
	for i := range avoided {
		s.add(&avoided[i].AffinityTerm, pod, namespace, node, -int64(avoided[i].Weight))
	}
}

// Score sums up what speaks for the node's domains.
func (a *InterPodAffinity) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	s, st := read[*podScores](state, podAffinityScoreKey)
	if !st.IsSuccess() {
		return 0, st
	}
	var sum int64
	for key, values := range s.byKey {
		if value, ok := node(n).Labels[key]; ok {
			sum += values[value]
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
			scores[i].Score = fwk.MaxScore * (scores[i].Score - lowest) / (highest - lowest)
		}
	}
	return nil
}
