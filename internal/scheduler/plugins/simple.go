package plugins

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
)

// PrioritySort orders the queue by priority, then by time.
type PrioritySort struct{}

// Name is upstream's.
func (PrioritySort) Name() string { return "PrioritySort" }

// Less puts the higher priority first, then the one that waits longer.
func (PrioritySort) Less(a, b fwk.QueuedEntityInfo) bool {
	if pa, pb := a.GetPriority(), b.GetPriority(); pa != pb {
		return pa > pb
	}
	return a.GetTimestamp().Before(b.GetTimestamp())
}

// SchedulingGates keeps pods with spec.schedulingGates out of the queue (KEP-3521).
type SchedulingGates struct{}

// Name is upstream's.
func (SchedulingGates) Name() string { return "SchedulingGates" }

// PreEnqueue names the gates that are still there.
func (SchedulingGates) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	names := make([]string, 0, len(pod.Spec.SchedulingGates))
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for scheduling gates: ["+strings.Join(names, " ")+"]")
}

// EventsToRegister is empty: only the pod's own change opens its gates.
func (SchedulingGates) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
}

// NodeName keeps a pod to the node that spec.nodeName asks for.
type NodeName struct{}

// Name is upstream's.
func (NodeName) Name() string { return "NodeName" }

// Filter compares the names.
func (NodeName) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	if pod.Spec.NodeName == "" || pod.Spec.NodeName == node(n).Name {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match the requested node name")
}

// EventsToRegister names a new node.
func (NodeName) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}), nil
}

// NodeUnschedulable keeps pods off cordoned nodes, unless they tolerate the taint
// that stands for it.
type NodeUnschedulable struct{}

// Name is upstream's.
func (NodeUnschedulable) Name() string { return "NodeUnschedulable" }

// Filter looks at spec.unschedulable.
func (NodeUnschedulable) Filter(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	if !node(n).Spec.Unschedulable {
		return nil
	}
	taint := v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
	if corev1.TolerationsTolerateTaint(klog.FromContext(ctx), pod.Spec.Tolerations, &taint, true) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) were unschedulable")
}

// EventsToRegister names what lifts a cordon.
func (NodeUnschedulable) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(
		fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeTaint},
		fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodToleration},
	), nil
}

// NodePorts keeps pods apart that want the same port of the node.
type NodePorts struct{}

// Name is upstream's.
func (NodePorts) Name() string { return "NodePorts" }

// PreFilter skips pods without host ports.
func (NodePorts) PreFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if len(pods.HostPorts(pod)) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, nil
}

// PreFilterExtensions is nil: Filter looks at the node itself.
func (NodePorts) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter looks for a conflict.
func (NodePorts) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	used := n.GetUsedPorts()
	for _, p := range pods.HostPorts(pod) {
		if used.CheckConflict(p.HostIP, string(p.Protocol), p.HostPort) {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't have free ports for the requested pod ports")
		}
	}
	return nil
}

// EventsToRegister names what frees a port.
func (NodePorts) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(
		fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete},
		fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add},
	), nil
}

// DefaultBinder writes the decision to the API server.
type DefaultBinder struct {
	Client clientset.Interface
}

// Name is upstream's.
func (DefaultBinder) Name() string { return "DefaultBinder" }

// Bind posts to the pod's binding subresource.
func (b DefaultBinder) Bind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: nodeName},
	}
	if err := b.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fwk.AsStatus(fmt.Errorf("bind pod %s/%s to node %s: %w", pod.Namespace, pod.Name, nodeName, err))
	}
	return nil
}
