package main

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testCase is a case of upstream's scheduler_perf.
type testCase struct {
	name      string
	threshold float64 // pods/s below which upstream's own run fails
	nodes     int
	zones     int
	// before are pods that are there when the measurement begins, measured those that count.
	before, measured batch
	// never are pods that fit nowhere, and wait all the while.
	never batch
}

// batch is a number of pods of one shape, spread over namespaces.
type batch struct {
	n          int
	namespaces []string // "default" if there are none
	shape      func(*v1.Pod)
}

// upstreamNodes is how many nodes the numbers of pods are for.
const upstreamNodes = 5000

// scaled returns the case for another number of nodes.
func (c testCase) scaled(nodes int) testCase {
	share := func(n int) int { return n * nodes / upstreamNodes }
	c.nodes = nodes
	c.before.n, c.measured.n, c.never.n = share(c.before.n), share(c.measured.n), share(c.never.n)
	return c
}

func cases() []testCase {
	plain := func(*v1.Pod) {}
	teams := make([]string, 100)
	for i := range teams {
		teams[i] = fmt.Sprint("team-", i)
	}
	return []testCase{
		{name: "basic", threshold: 270, zones: 1, before: batch{n: 1000, shape: plain}, measured: batch{n: 10000, shape: plain}},
		{name: "node affinity", threshold: 220, zones: 2, before: batch{n: 5000, shape: inZones}, measured: batch{n: 10000, shape: inZones}},
		{name: "topology spread", threshold: 85, zones: 3, before: batch{n: 5000, shape: plain}, measured: batch{n: 5000, shape: spread}},
		{name: "pod affinity", threshold: 35, zones: 1, before: batch{n: 5000, shape: friends}, measured: batch{n: 5000, shape: friends}},
		{name: "pod anti-affinity", threshold: 60, zones: 1, before: batch{n: 1000, shape: apart(nil)}, measured: batch{n: 1000, shape: apart(nil)}},
		{
			name: "anti-affinity with namespace selector", threshold: 24, zones: 1,
			before:   batch{n: 4000, namespaces: teams, shape: apart(map[string]string{"team": "devops"})},
			measured: batch{n: 1000, namespaces: teams[:1], shape: apart(map[string]string{"team": "devops"})},
		},
		{name: "preemption", threshold: 160, zones: 1, before: batch{n: 20000, shape: least}, measured: batch{n: 5000, shape: urgent}},
		{
			name: "unschedulable pods beside", threshold: 200, zones: 1, measured: batch{n: 10000, shape: plain},
			never: batch{n: 10000, shape: func(p *v1.Pod) { requests(p, "9") }},
		},
	}
}

// label is what pods of the shapes with affinity have.
const label, value = "color", "blue"

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{label: value}}
}

func inZones(p *v1.Pod) {
	p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
			{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{"zone-0", "zone-1"}},
		}}},
	}}}
}

func spread(p *v1.Pod) {
	p.Labels = map[string]string{label: value}
	p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
		MaxSkew: 5, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selector(),
	}}
}

func friends(p *v1.Pod) {
	p.Labels = map[string]string{label: value}
	p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{LabelSelector: selector(), TopologyKey: v1.LabelTopologyZone},
	}}}
}

// apart returns the shape of pods of which a node has one, among those of the namespaces that are selected.
func apart(namespaces map[string]string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Labels = map[string]string{label: value}
		term := v1.PodAffinityTerm{LabelSelector: selector(), TopologyKey: v1.LabelHostname}
		if namespaces != nil {
			term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: namespaces}
		}
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
	}
}

// least is the shape of pods of which four fill a node, and which make way.
func least(p *v1.Pod) {
	requests(p, "900m")
	p.Spec.TerminationGracePeriodSeconds = new(int64(0))
}

// urgent is the shape of pods for which three of the least must go.
func urgent(p *v1.Pod) {
	requests(p, "3")
	p.Spec.PriorityClassName, p.Spec.Priority = classUrgent, nil
}

func requests(p *v1.Pod, cpu string) {
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{
		v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("500Mi"),
	}
}

func podOf(b batch, i int, prefix string) *v1.Pod {
	namespace := metav1.NamespaceDefault
	if len(b.namespaces) > 0 {
		namespace = b.namespaces[i%len(b.namespaces)]
	}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(prefix, i), Namespace: namespace},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "pause", Image: "registry.k8s.io/pause:3.10"}}},
	}
	requests(p, "100m")
	b.shape(p)
	return p
}

func nodeOf(c testCase, i int) *v1.Node {
	name := fmt.Sprint("node-", i)
	capacity := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("32Gi"), v1.ResourcePods: resource.MustParse("110"),
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprint("zone-", i%c.zones)}},
		Status: v1.NodeStatus{
			Capacity: capacity, Allocatable: capacity, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
}
