package sim

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/admission"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/podworker"
)

// gate is the node's admission, which now and then makes a pod wait, or has no room.
type gate struct {
	*admission.Admission
	n *node
}

func (n *node) newGate(pods *podworker.Pods) gate {
	return gate{admission.New(admission.Config{
		Conditions: &admission.Conditions{}, Node: func() *v1.Node { return simNode(n.life.taints) },
		Look: func(context.Context) {}, Refused: func(*v1.Pod, podplan.Verdict) {}, Preempted: func(string) {}, Changed: func() {},
	}, crowded{pods}), n}
}

func (g gate) Admit(ctx context.Context, pod *v1.Pod, static bool) podplan.Verdict {
	l := g.n.life
	switch {
	case l.faulty() && l.dice.chance(0.1, "admission waits"):
		time.AfterFunc(l.dice.upTo(20*time.Second, "admission waits for"), func() {
			if n := l.current.Load(); n != nil {
				n.table.Wake(pod.UID)
			}
		})
		return podplan.Verdict{} // others have to go first
	case l.broken.admit:
		return podplan.Verdict{Admitted: true}
	}
	return g.Admission.Admit(ctx, pod, static)
}

func (g gate) Resize(ctx context.Context, in *podplan.Input) podplan.ResizeDecision {
	l := g.n.life
	switch {
	case l.faulty() && l.dice.chance(0.3, "no room"):
		return podplan.ResizeDecision{Reason: v1.PodReasonDeferred, Message: "no room now"}
	case l.dice.chance(0.1, "infeasible"):
		return podplan.ResizeDecision{Reason: v1.PodReasonInfeasible, Message: "never"}
	}
	return g.Admission.Resize(ctx, in)
}

// crowded is a node with another pod on it, which nothing can evict.
type crowded struct{ *podworker.Pods }

func (c crowded) List() []*podworker.Snapshot {
	other := &podworker.Snapshot{Pod: otherPod(), Input: podplan.Input{Record: podplan.Record{Verdict: &podplan.Verdict{Admitted: true}}}}
	return append(c.Pods.List(), other)
}

// arrived has the node decide on a pod that came after those that the node was started with.
func (n *node) arrived(pod *v1.Pod) {
	if n.settled.Load() {
		n.gate.Arrived(pod)
	}
}

// ranAt notes the pods that the runtime had when the kubelet started.
func (n *node) ranAt(uid types.UID) {
	if n.ran == nil {
		n.ran = map[types.UID]bool{}
	}
	n.ran[uid] = true
}
