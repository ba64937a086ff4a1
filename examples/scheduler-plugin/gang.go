package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is what profiles enable.
const Name = "Gang"

// The label says to which gang a pod belongs, in its namespace; the annotation, how many members the gang has.
// Nodes with the label that Spare names are left to others.
const (
	Label = "gang.example.com/name"
	Size  = "gang.example.com/size"
	Spare = "gang.example.com/spare"
)

// Gang binds the pods of a gang when all of them have found a node.
//
//	PreEnqueue  keeps a pod out of the queue until the gang is complete
//	Filter      leaves spare nodes to others
//	Score       prefers nodes that have members already
//	Permit      lets a member wait until all have a node; then all are let through
type Gang struct {
	h       fwk.Handle
	pods    corelisters.PodLister
	timeout time.Duration
}

var (
	_ fwk.PreEnqueuePlugin  = (*Gang)(nil)
	_ fwk.FilterPlugin      = (*Gang)(nil)
	_ fwk.ScorePlugin       = (*Gang)(nil)
	_ fwk.PermitPlugin      = (*Gang)(nil)
	_ fwk.ReservePlugin     = (*Gang)(nil)
	_ fwk.EnqueueExtensions = (*Gang)(nil)
)

// args are what a profile's pluginConfig can have.
type args struct {
	// TimeoutSeconds is how long a member waits for the others. Then it gives its place back.
	TimeoutSeconds int64 `json:"timeoutSeconds"`
}

// New makes the plugin.
func New(_ context.Context, obj runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a := args{TimeoutSeconds: 60}
	if raw, ok := obj.(*runtime.Unknown); ok {
		if err := json.Unmarshal(raw.Raw, &a); err != nil {
			return nil, fmt.Errorf("args: %w", err)
		}
	}
	if a.TimeoutSeconds <= 0 {
		return nil, errors.New("args.timeoutSeconds: must be greater than 0")
	}
	return &Gang{h: h, pods: h.SharedInformerFactory().Core().V1().Pods().Lister(), timeout: time.Duration(a.TimeoutSeconds) * time.Second}, nil
}

// Name returns the plugin's name.
func (*Gang) Name() string { return Name }

// size returns how many members the pod's gang has; 0 for a pod without a gang.
func size(pod *v1.Pod) int {
	n, err := strconv.Atoi(pod.Annotations[Size])
	if pod.Labels[Label] == "" || err != nil {
		return 0
	}
	return n
}

func (g *Gang) members(pod *v1.Pod) ([]*v1.Pod, error) {
	return g.pods.Pods(pod.Namespace).List(labels.SelectorFromSet(labels.Set{Label: pod.Labels[Label]}))
}

// PreEnqueue waits for the rest of the gang.
func (g *Gang) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	want := size(pod)
	members, err := g.members(pod)
	switch {
	case err != nil:
		return fwk.AsStatus(err)
	case len(members) < want:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("%d of %d members of gang %s are there", len(members), want, pod.Labels[Label]))
	}
	return nil
}

// EventsToRegister returns what can help a pod that this plugin rejected: another member, or a node.
func (g *Gang) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.UpdatePodLabel}, QueueingHintFn: sameGang},
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
	}, nil
}

func sameGang(_ klog.Logger, pod *v1.Pod, _, obj any) (fwk.QueueingHint, error) {
	other, ok := obj.(*v1.Pod)
	if ok && other.Namespace == pod.Namespace && other.Labels[Label] == pod.Labels[Label] {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// Filter leaves spare nodes to pods without a gang.
func (g *Gang) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	if _, spare := n.Node().Labels[Spare]; spare && size(pod) > 0 {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) were spared from gangs")
	}
	return nil
}

// Score returns the share of the gang that is on the node.
func (g *Gang) Score(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	want := size(pod)
	if want == 0 {
		return 0, nil
	}
	there := 0
	for _, p := range n.GetPods() {
		if p.GetPod().Namespace == pod.Namespace && p.GetPod().Labels[Label] == pod.Labels[Label] {
			there++
		}
	}
	return fwk.MaxScore * int64(min(there, want)) / int64(want), nil
}

// ScoreExtensions returns nil: the score is on the right scale already.
func (*Gang) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Permit counts the members that have a node. The last one lets all of them through.
func (g *Gang) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	want := size(pod)
	if want == 0 {
		return nil, 0
	}
	ready := 1
	var waiting []fwk.WaitingPod
	g.h.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if p := w.GetPod(); p.Namespace == pod.Namespace && p.Labels[Label] == pod.Labels[Label] {
			waiting = append(waiting, w)
			ready++
		}
	})
	members, err := g.members(pod)
	if err != nil {
		return fwk.AsStatus(err), 0
	}
	for _, p := range members {
		if p.Spec.NodeName != "" {
			ready++
		}
	}
	if ready < want {
		return fwk.NewStatus(fwk.Wait), g.timeout
	}
	for _, w := range waiting {
		w.Allow(Name)
	}
	return nil, 0
}

// Reserve does nothing: the places are reserved by the scheduler.
func (*Gang) Reserve(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status { return nil }

// Unreserve sends the others back, too, when one of them has failed: their places may be what somebody else
// waits for.
func (g *Gang) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	if size(pod) == 0 {
		return
	}
	g.h.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if p := w.GetPod(); p.UID != pod.UID && p.Namespace == pod.Namespace && p.Labels[Label] == pod.Labels[Label] {
			w.Reject(Name, "another member of the gang has lost its node")
		}
	})
}
