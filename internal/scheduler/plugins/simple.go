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

// Name returns upstream's name.
func (PrioritySort) Name() string { return "PrioritySort" }

// Less puts the higher priority first, then the pod that has waited longer.
func (PrioritySort) Less(a, b fwk.QueuedEntityInfo) bool {
	if pa, pb := a.GetPriority(), b.GetPriority(); pa != pb {
		return pa > pb
	}
	return a.GetTimestamp().Before(b.GetTimestamp())
}

// SchedulingGates keeps pods with spec.schedulingGates out of the queue (KEP-3521).
type SchedulingGates struct{}

// Name returns upstream's name.
func (SchedulingGates) Name() string { return "SchedulingGates" }

// PreEnqueue rejects a pod with gates, and names them.
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

// EventsToRegister returns none: only a change of the pod itself opens its gates.
func (SchedulingGates) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return nil, nil
}

// NodeName limits a pod to the node named in spec.nodeName.
type NodeName struct{}

// Name returns upstream's name.
func (NodeName) Name() string { return "NodeName" }

// Filter compares the names.
func (NodeName) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	if pod.Spec.NodeName == "" || pod.Spec.NodeName == node(n).Name {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match the requested node name")
}

// EventsToRegister returns the event of a new node.
func (NodeName) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}), nil
}

// NodeUnschedulable keeps pods off cordoned nodes, unless they tolerate the taint of a cordon.
type NodeUnschedulable struct{}

// Name returns upstream's name.
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

// EventsToRegister returns the events that lift a cordon.
func (NodeUnschedulable) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(
		fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeTaint},
		fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodToleration},
	), nil
}

// NodePorts keeps pods that need the same port of the node apart.
type NodePorts struct{}

// Name returns upstream's name.
func (NodePorts) Name() string { return "NodePorts" }

// PreFilter skips pods without host ports.
func (NodePorts) PreFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if len(pods.HostPorts(pod)) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, nil
}

// PreFilterExtensions returns nil: Filter looks at the node itself.
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

// EventsToRegister returns the events that free a port.
func (NodePorts) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return register(
		fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete},
		fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add},
	), nil
}

// DefaultBinder writes the decision to the API server.
type DefaultBinder struct {
	Client clientset.Interface
}

func newDefaultBinder(_ context.Context, _ *none, h fwk.Handle) (fwk.Plugin, error) {
	return DefaultBinder{Client: h.ClientSet()}, nil
}

// Name returns upstream's name.
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
