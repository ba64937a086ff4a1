package plugins

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
)

// GangScheduling is the name of the plugin.
const GangScheduling = "GangScheduling"

// gangPatience limits how long a pod of a gang holds its node while others of the gang have none. It matters only for
// pods that are not scheduled together with their group.
const gangPatience = 5 * time.Minute

// gangScheduling keeps the pods of a gang back until enough of them exist, and lets none be bound before enough of
// them have a node (KEP-4671).
type gangScheduling struct {
	handle fwk.Handle
	groups fwk.PodGroupManager
}

var (
	_ fwk.PreEnqueuePlugin  = (*gangScheduling)(nil)
	_ fwk.PermitPlugin      = (*gangScheduling)(nil)
	_ fwk.EnqueueExtensions = (*gangScheduling)(nil)
)

func newGangScheduling(h fwk.Handle) (fwk.Plugin, error) {
	return &gangScheduling{handle: h, groups: h.PodGroupManager()}, nil
}

// Name returns upstream's name.
func (*gangScheduling) Name() string { return GangScheduling }

// PreEnqueue rejects pods whose group does not exist, and those of a gang of which fewer exist than are to run.
func (g *gangScheduling) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	name, ok := pods.Group(pod)
	if !ok {
		return nil
	}
	group, err := g.groups.PodGroups().Get(name.Namespace, name.Name)
	if apierrors.IsNotFound(err) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for the pod's pod group %q to be created", name.Name))
	}
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("pod group %s: %w", name, err))
	}
	least := MinCount(group)
	if least == 0 {
		return nil
	}
	pods, err := g.groups.PodGroupStates().Get(name.Namespace, name.Name)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if n := pods.AllPodsCount(); n < least {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for minCount pods from a gang to be created: there are %d of %d", n, least))
	}
	return nil
}

// Permit makes the pods of a gang wait until enough of them have a node, and then lets all of them go on.
func (g *gangScheduling) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) (*fwk.Status, time.Duration) {
	name, ok := pods.Group(pod)
	if !ok {
		return nil, 0
	}
	group, err := g.groups.PodGroups().Get(name.Namespace, name.Name)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("pod group %s: %w", name, err)), 0
	}
	least := MinCount(group)
	if least == 0 {
		return nil, 0
	}
	pods, err := g.groups.PodGroupStates().Get(name.Namespace, name.Name)
	if err != nil {
		return fwk.AsStatus(err), 0
	}
	if pods.ScheduledPodsCount() < least {
		return fwk.NewStatus(fwk.Wait, "waiting for minCount pods from a gang to be scheduled"), gangPatience
	}
	for uid := range pods.AssumedPods() {
		if wp := g.handle.GetWaitingPod(uid); wp != nil {
			wp.Allow(GangScheduling)
		}
	}
	return nil, 0
}

// MinCount returns how many pods of a group must have a node before any is bound; 0 if they are on their own.
func MinCount(group *schedulingv1beta1.PodGroup) int {
	if gang := group.Spec.SchedulingPolicy.Gang; gang != nil {
		return int(gang.MinCount)
	}
	return 0
}

// EventsToRegister returns what can complete a gang: its pods that come, a pod of it that goes and leaves its place in
// the order to others, and the group itself, whose minCount may change.
func (g *gangScheduling) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.Delete}, QueueingHintFn: afterOther},
		{Event: fwk.ClusterEvent{Resource: fwk.PodGroup, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: g.afterGroup},
	}, nil
}

func (*gangScheduling) afterGroup(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	group, ok := newObj.(*schedulingv1beta1.PodGroup)
	if !ok {
		return fwk.Queue, fmt.Errorf("an event of a pod group has a %T", newObj)
	}
	if mine, ok := pods.Group(pod); !ok || mine.Namespace != group.Namespace || mine.Name != group.Name {
		return fwk.QueueSkip, nil
	}
	if old, ok := oldObj.(*schedulingv1beta1.PodGroup); ok && MinCount(old) == MinCount(group) {
		return fwk.QueueSkip, nil // only its status changed
	}
	return fwk.Queue, nil
}
