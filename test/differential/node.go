package main

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels of nodes beside Kubernetes' own, and words that pods and nodes have in common.
const (
	labelRack, racks       = "rack", "r0 r1 r2 r3"
	labelDisk, disks       = "disk", "ssd hdd"
	labelGeneration        = "generation" // a number
	zones                  = "a b c"
	resourceGPU            = v1.ResourceName("example.com/gpu")
	taintKeys, taintValues = "dedicated flaky level", "x y 3 7"
)

var images = []v1.ContainerImage{
	{Names: []string{"registry.example/small:1"}, SizeBytes: 12 << 20},
	{Names: []string{"registry.example/web:1", "registry.example/web@sha256:" + sha}, SizeBytes: 180 << 20},
	{Names: []string{"registry.example/data:2"}, SizeBytes: 900 << 20},
	{Names: []string{"docker.io/library/huge:latest"}, SizeBytes: 3 << 30},
}

const sha = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// node returns a random node.
func (d dice) node(i int) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n-", i), Labels: map[string]string{}},
		Status: v1.NodeStatus{
			Allocatable: d.room(),
			Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
			Images:      some(d, 3, images...),
		},
	}
	d.label(n)
	n.Spec.Taints = d.taints()
	n.Spec.Unschedulable = d.chance(14)
	n.Status.Capacity = n.Status.Allocatable.DeepCopy()
	n.Status.Capacity[v1.ResourceCPU] = resource.MustParse("64") // what counts is what is allocatable
	return n
}

// room returns what a node has for pods. Nodes of few sizes, so that scores are often equal.
func (d dice) room() v1.ResourceList {
	out := v1.ResourceList{
		v1.ResourceCPU:              resource.MustParse(d.word("1 2 4 4 8 3500m")),
		v1.ResourceMemory:           resource.MustParse(d.word("1Gi 4Gi 8Gi 8Gi 16Gi 7700Mi")),
		v1.ResourcePods:             resource.MustParse(d.word("3 8 110 110")),
		v1.ResourceEphemeralStorage: resource.MustParse(d.word("5Gi 50Gi")),
	}
	if d.chance(3) {
		out[resourceGPU] = resource.MustParse(d.upTo(4))
	}
	if d.chance(3) {
		out[v1.ResourceHugePagesPrefix+"2Mi"] = resource.MustParse("64Mi")
	}
	return out
}

// label gives a node new labels; some lack a few.
func (d dice) label(n *v1.Node) {
	n.Labels = map[string]string{}
	for _, l := range []struct {
		key, values string
		missing     int // once in so many times
	}{
		{v1.LabelHostname, n.Name, 30},
		{v1.LabelTopologyZone, zones, 12},
		{v1.LabelTopologyRegion, "west east", 6},
		{labelRack, racks, 5},
		{labelDisk, disks, 4},
		{labelGeneration, "1 2 5 9 x", 3},
	} {
		if !d.chance(l.missing) {
			n.Labels[l.key] = d.word(l.values)
		}
	}
}

func (d dice) taints() []v1.Taint {
	var out []v1.Taint
	for key := range strings.FieldsSeq(taintKeys) {
		if d.chance(9) {
			out = append(out, v1.Taint{Key: key, Value: d.word(taintValues), Effect: d.effect()})
		}
	}
	if d.chance(25) {
		out = append(out, v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule})
	}
	return out
}

func (d dice) effect() v1.TaintEffect {
	return one(d, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectPreferNoSchedule,
		v1.TaintEffectNoExecute)
}
