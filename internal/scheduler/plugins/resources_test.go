package plugins

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// takenHandle says what is taken of node n, by pods of priority 5.
type takenHandle struct {
	fwk.Handle
	has, taken string
}

func (h takenHandle) Taken(node string, by *v1.Pod) (has, taken fwk.Resource, pods int, known bool) {
	taken = &framework.Resource{}
	if framework.Priority(by) <= 5 {
		taken, pods = framework.NewResource(amounts(h.taken)), 1
	}
	return framework.NewResource(amounts(h.has)), taken, pods, node == "n"
}

// TestAPodThatGoesWakesWhoFits: it woke every pod that had found no room anywhere.
func TestAPodThatGoesWakesWhoFits(t *testing.T) {
	pl, err := newNodeResourcesFit(t.Context(), &configv1.NodeResourcesFitArgs{}, takenHandle{has: "cpu=4 memory=4Gi pods=2", taken: "cpu=3"})
	if err != nil {
		t.Fatal(err)
	}
	f, ok := pl.(NodeResourcesFit)
	if !ok {
		t.Fatalf("%T", pl)
	}
	on := func(p *v1.Pod) { p.Spec.NodeName = "n" }
	more := func(p *v1.Pod) { p.Spec.Priority = new(int32(6)) }
	for name, tc := range map[string]struct {
		pod, gone *v1.Pod
		want      fwk.QueueingHint
	}{
		"it fits":                        {makePod(requests("cpu=1")), makePod(on), fwk.Queue},
		"too little is free":             {makePod(requests("cpu=2")), makePod(on), fwk.QueueSkip},
		"what is taken can be preempted": {makePod(requests("cpu=2"), more), makePod(on), fwk.Queue},
		"larger than the node":           {makePod(requests("cpu=5"), more), makePod(on), fwk.QueueSkip},
		"it had no node":                 {makePod(requests("cpu=1")), makePod(), fwk.QueueSkip},
		"it was to get the node": {makePod(requests("cpu=1")), makePod(func(p *v1.Pod) {
			p.Status.NominatedNodeName = "n"
		}), fwk.Queue},
		"an unknown node": {makePod(requests("cpu=9")), makePod(func(p *v1.Pod) { p.Spec.NodeName = "m" }), fwk.Queue},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := f.freed(klog.Background(), tc.pod, tc.gone, nil)
			if got != tc.want || err != nil {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// TestShapesOfRequests: pods of one shape have the same hints.
func TestShapesOfRequests(t *testing.T) {
	shape := NodeResourcesFit{}.HintShape
	one := makePod(requests("cpu=1 memory=1Gi example.com/gpu=1"))
	if other := makePod(requests("memory=1024Mi example.com/gpu=1"), requests("cpu=1000m")); shape(one) != shape(other) {
		t.Errorf("%q and %q", shape(one), shape(other))
	}
	for _, other := range []*v1.Pod{
		makePod(requests("cpu=1 memory=1Gi")), makePod(requests("cpu=1 memory=2Gi example.com/gpu=1")),
		makePod(requests("cpu=1 memory=1Gi example.com/gpu=1"), func(p *v1.Pod) { p.Spec.Priority = new(int32(1)) }),
	} {
		if shape(one) == shape(other) {
			t.Errorf("both have %q", shape(one))
		}
	}
}
