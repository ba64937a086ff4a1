package scheduler

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
)

// watch feeds the queue and the cache.
func (s *Scheduler) watch(ctx context.Context, f informers.SharedInformerFactory) ([]cache.DoneChecker, error) {
	nodes, err := f.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.nodeAdded(ctx, obj) },
		UpdateFunc: func(old, obj any) { s.nodeUpdated(ctx, old, obj) },
		DeleteFunc: func(obj any) { s.nodeDeleted(obj) },
	})
	if err != nil {
		return nil, err
	}
	pods, err := f.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.podChanged(ctx, nil, obj) },
		UpdateFunc: func(old, obj any) { s.podChanged(ctx, old, obj) },
		DeleteFunc: func(obj any) { s.podDeleted(ctx, obj) },
	})
	if err != nil {
		return nil, err
	}
	return []cache.DoneChecker{nodes.HasSyncedChecker(), pods.HasSyncedChecker()}, nil
}

func (s *Scheduler) nodeAdded(ctx context.Context, obj any) {
	if node, ok := obj.(*v1.Node); ok {
		s.cache.SetNode(node)
		s.queue.Move(ctx, fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}, nil, node)
	}
}

func (s *Scheduler) nodeUpdated(ctx context.Context, oldObj, obj any) {
	node, ok := obj.(*v1.Node)
	old, okOld := oldObj.(*v1.Node)
	if !ok || !okOld {
		return
	}
	s.cache.SetNode(node)
	if what := nodeChange(old, node); what != fwk.None {
		s.queue.Move(ctx, fwk.ClusterEvent{Resource: fwk.Node, ActionType: what}, old, node)
	}
}

// nodeChange returns what has changed, so that a heartbeat wakes no pod.
func nodeChange(old, node *v1.Node) fwk.ActionType {
	what := fwk.None
	if !equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) {
		what |= fwk.UpdateNodeAllocatable
	}
	if !maps.Equal(old.Labels, node.Labels) {
		what |= fwk.UpdateNodeLabel
	}
	if !equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) || old.Spec.Unschedulable != node.Spec.Unschedulable {
		what |= fwk.UpdateNodeTaint
	}
	return what
}

func (s *Scheduler) nodeDeleted(obj any) {
	if node, ok := unwrap(obj).(*v1.Node); ok {
		s.cache.RemoveNode(node.Name)
	}
}

// podChanged puts a pod where it belongs now: bound ones into the cache, those for one of our
// profiles into the queue, finished ones nowhere.
func (s *Scheduler) podChanged(ctx context.Context, oldObj, obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	log := klog.FromContext(ctx)
	switch {
	case pods.IsTerminal(pod.Status.Phase):
		s.drop(ctx, pod)
	case pod.Spec.NodeName != "":
		s.queue.Remove(pod.UID)
		if err := s.cache.SetPod(pod); err != nil {
			log.Error(err, "Cannot add a bound pod to the cache", "pod", klog.KObj(pod))
		}
		if old, ok := oldObj.(*v1.Pod); ok && scaledDown(old, pod) {
			s.queue.Move(ctx, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.UpdatePodScaleDown}, old, pod)
		}
	case s.profiles[pod.Spec.SchedulerName] == nil || pod.DeletionTimestamp != nil:
		s.queue.Remove(pod.UID)
	default:
		// If the pod is just being bound, the queue knows it as in flight.
		if err := s.queue.Add(ctx, pod); err != nil {
			log.Error(err, "Cannot queue a pod", "pod", klog.KObj(pod))
		}
	}
}

// scaledDown reports whether a pod counts for less of some resource than before. A resize frees the
// resource when the kubelet has carried it out and reports that in the status.
func scaledDown(old, pod *v1.Pod) bool {
	before, now := framework.Requests(old), framework.Requests(pod)
	for name, q := range before {
		if less := now[name]; less.Cmp(q) < 0 {
			return true
		}
	}
	return false
}

func (s *Scheduler) podDeleted(ctx context.Context, obj any) {
	if pod, ok := unwrap(obj).(*v1.Pod); ok {
		s.drop(ctx, pod)
	}
}

func (s *Scheduler) drop(ctx context.Context, pod *v1.Pod) {
	s.queue.Remove(pod.UID)
	s.cache.RemovePod(pod.UID)
	if pod.Spec.NodeName != "" {
		s.queue.Move(ctx, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, pod, nil)
	}
}

// unwrap returns the last known state of an object whose deletion was missed.
func unwrap(obj any) any {
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return t.Obj
	}
	return obj
}
