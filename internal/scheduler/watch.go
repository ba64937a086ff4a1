package scheduler

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/framework"
)

// inform makes the informers, so that whoever starts them has them all.
func (s *Scheduler) inform(f informers.SharedInformerFactory) {
	f.Core().V1().Nodes().Informer()
	f.Core().V1().Pods().Informer()
	s.watched(f)
}

// watch feeds the queue and the cache.
func (s *Scheduler) watch(ctx context.Context, f informers.SharedInformerFactory) ([]cache.DoneChecker, error) {
	nodes, err := f.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.nodeAdded(ctx, obj) },
		UpdateFunc: func(old, obj any) { s.nodeUpdated(ctx, old, obj) },
		DeleteFunc: func(obj any) { s.nodeDeleted(ctx, obj) },
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
	synced := []cache.DoneChecker{nodes.HasSyncedChecker(), pods.HasSyncedChecker()}
	for resource, informer := range s.watched(f) {
		r, err := informer.AddEventHandler(s.moving(ctx, resource))
		if err != nil {
			return nil, err
		}
		synced = append(synced, r.HasSyncedChecker())
	}
	if r, err := s.watchTaintRules(ctx); err != nil {
		return nil, err
	} else if r != nil {
		synced = append(synced, r)
	}
	return synced, nil
}

// watched returns the informers of other kinds of which some plugin wants to hear.
func (s *Scheduler) watched(f informers.SharedInformerFactory) map[fwk.EventResource]cache.SharedIndexInformer {
	out := map[fwk.EventResource]cache.SharedIndexInformer{}
	for resource, informer := range map[fwk.EventResource]func() cache.SharedIndexInformer{
		fwk.PersistentVolume:      f.Core().V1().PersistentVolumes().Informer,
		fwk.PersistentVolumeClaim: f.Core().V1().PersistentVolumeClaims().Informer,
		fwk.StorageClass:          f.Storage().V1().StorageClasses().Informer,
		fwk.CSINode:               f.Storage().V1().CSINodes().Informer,
		fwk.CSIDriver:             f.Storage().V1().CSIDrivers().Informer,
		fwk.CSIStorageCapacity:    f.Storage().V1().CSIStorageCapacities().Informer,
		fwk.VolumeAttachment:      f.Storage().V1().VolumeAttachments().Informer,
		fwk.ResourceClaim:         f.Resource().V1().ResourceClaims().Informer,
		fwk.ResourceSlice:         f.Resource().V1().ResourceSlices().Informer,
		fwk.DeviceClass:           f.Resource().V1().DeviceClasses().Informer,
		fwk.PodGroup:              f.Scheduling().V1beta1().PodGroups().Informer,
	} {
		if s.named(resource) {
			out[resource] = informer()
		}
	}
	return out
}

// named reports whether a plugin wants to hear of this kind by name.
func (s *Scheduler) named(resource fwk.EventResource) bool {
	for _, plugins := range s.hints {
		for _, hints := range plugins {
			if slices.ContainsFunc(hints, func(h fwk.ClusterEventWithHint) bool { return h.Event.Resource == resource }) {
				return true
			}
		}
	}
	return false
}

// moving gives pods another chance when an object of this kind comes, changes or goes.
func (s *Scheduler) moving(ctx context.Context, resource fwk.EventResource) cache.ResourceEventHandler {
	move := func(what fwk.ActionType, old, obj any) {
		s.move(ctx, time.Now(), resource, what, old, obj)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { move(fwk.Add, nil, obj) },
		UpdateFunc: func(old, obj any) { move(fwk.Update, old, obj) },
		DeleteFunc: func(obj any) { move(fwk.Delete, unwrap(obj), nil) },
	}
}

// move tells the queue of an event, and notes how long it took since it came.
func (s *Scheduler) move(ctx context.Context, came time.Time, resource fwk.EventResource, what fwk.ActionType, old, obj any) {
	ev := fwk.ClusterEvent{Resource: resource, ActionType: what}
	s.queue.Move(ctx, ev, old, obj)
	handled(ev, came)
}

func (s *Scheduler) nodeAdded(ctx context.Context, obj any) {
	came := time.Now()
	if node, ok := obj.(*v1.Node); ok {
		s.cache.SetNode(node)
		s.move(ctx, came, fwk.Node, fwk.Add, nil, node)
	}
}

func (s *Scheduler) nodeUpdated(ctx context.Context, oldObj, obj any) {
	came := time.Now()
	node, ok := obj.(*v1.Node)
	old, okOld := oldObj.(*v1.Node)
	if !ok || !okOld {
		return
	}
	s.cache.SetNode(node)
	if what := nodeChange(old, node); what != fwk.None {
		s.move(ctx, came, fwk.Node, what, old, node)
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
	if !maps.Equal(old.Annotations, node.Annotations) {
		what |= fwk.UpdateNodeAnnotation
	}
	if !slices.Equal(old.Status.DeclaredFeatures, node.Status.DeclaredFeatures) {
		what |= fwk.UpdateNodeDeclaredFeature
	}
	if !maps.Equal(conditions(old), conditions(node)) {
		what |= fwk.UpdateNodeCondition
	}
	return what
}

func conditions(node *v1.Node) map[v1.NodeConditionType]v1.ConditionStatus {
	out := map[v1.NodeConditionType]v1.ConditionStatus{}
	for _, c := range node.Status.Conditions {
		out[c.Type] = c.Status
	}
	return out
}

// nodeDeleted helps pods that were to be spread over the node, too.
func (s *Scheduler) nodeDeleted(ctx context.Context, obj any) {
	came := time.Now()
	if node, ok := unwrap(obj).(*v1.Node); ok {
		s.cache.RemoveNode(node.Name)
		s.move(ctx, came, fwk.Node, fwk.Delete, node, nil)
	}
}

// podChanged puts a pod where it belongs now: bound ones into the cache, those for one of our
// profiles into the queue, finished ones nowhere.
func (s *Scheduler) podChanged(ctx context.Context, oldObj, obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	came := time.Now()
	old, _ := oldObj.(*v1.Pod)
	log := klog.FromContext(ctx)
	switch {
	case pods.IsTerminal(pod.Status.Phase):
		s.drop(ctx, pod)
	case pod.Spec.NodeName != "":
		s.queue.Remove(pod.UID)
		s.groups.Assign(pod)
		if err := s.cache.SetPod(pod); err != nil {
			log.Error(err, "Cannot add a bound pod to the cache", "pod", klog.KObj(pod))
		}
		if old == nil || old.Spec.NodeName == "" {
			// What it was before does not matter: it was nowhere, or only nominated.
			s.move(ctx, came, fwk.AssignedPod, fwk.Add, nil, pod)
		} else if what := podChange(old, pod); what != fwk.None {
			s.move(ctx, came, fwk.AssignedPod, what, old, pod)
		}
	case s.profiles[pod.Spec.SchedulerName] == nil:
	case pod.DeletionTimestamp != nil:
		s.dropWaiting(ctx, pod)
	default:
		s.groups.Waits(pod) // before it is queued: it may complete its group
		// If the pod is just being bound, the queue knows it as in flight.
		if err := s.queue.Add(ctx, pod); err != nil {
			log.Error(err, "Cannot queue a pod", "pod", klog.KObj(pod))
		}
		s.waitingPodChanged(ctx, came, old, pod)
	}
}

// waitingPodChanged tells the plugins of others about a pod that has no node. One that is nominated for another
// node than before has gone from there, and come here.
func (s *Scheduler) waitingPodChanged(ctx context.Context, came time.Time, old, pod *v1.Pod) {
	move := func(what fwk.ActionType, old, pod any) { // any, so that no object is nil and not a nil pod
		s.move(ctx, came, fwk.UnscheduledPod, what, old, pod)
	}
	switch {
	case old == nil:
		move(fwk.Add, nil, pod)
	case old.Status.NominatedNodeName != pod.Status.NominatedNodeName:
		move(fwk.Delete, old, nil)
		move(fwk.Add, nil, pod)
	default:
		if what := podChange(old, pod); what != fwk.None {
			move(what, old, pod)
		}
	}
}

// podChange returns what has changed of that which plugins look at in other pods.
func podChange(old, pod *v1.Pod) fwk.ActionType {
	what := fwk.None
	if !maps.Equal(old.Labels, pod.Labels) {
		what |= fwk.UpdatePodLabel
	}
	if len(old.Spec.Tolerations) != len(pod.Spec.Tolerations) {
		what |= fwk.UpdatePodToleration
	}
	if !resourceclaim.PodStatusEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) ||
		!resourceclaim.PodExtendedStatusEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus) {
		what |= fwk.UpdatePodGeneratedResourceClaim
	}
	before, now := framework.Requests(old), framework.Requests(pod)
	if less(now, before) {
		what |= fwk.UpdatePodScaleDown
	}
	if less(before, now) {
		what |= fwk.UpdatePodScaleUp
	}
	return what
}

// less reports whether a has less of some resource than b. A resize frees a resource when the kubelet
// has carried it out and reports that in the status, so this is about what the pod counts for.
func less(a, b v1.ResourceList) bool {
	for name, q := range b {
		if has := a[name]; has.Cmp(q) < 0 {
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
	if pod.Spec.NodeName == "" {
		s.dropWaiting(ctx, pod)
		return
	}
	came := time.Now()
	s.queue.Remove(pod.UID)
	s.cache.RemovePod(pod.UID)
	s.groups.Remove(pod)
	s.move(ctx, came, fwk.AssignedPod, fwk.Delete, pod, nil)
	s.releaseRoom(ctx, pod)
}

// dropWaiting forgets a pod that needs no node any more. Others may have kept off the room that was
// being made for it.
func (s *Scheduler) dropWaiting(ctx context.Context, pod *v1.Pod) {
	came := time.Now()
	held := s.queue.Nominator().NodeOf(pod.UID)
	s.queue.Remove(pod.UID)
	s.cache.RemovePod(pod.UID) // it may have been bound without our seeing it
	s.groups.Remove(pod)
	s.shared.Waiting.Reject(pod.UID, "the pod was deleted")
	s.move(ctx, came, fwk.UnscheduledPod, fwk.Delete, pod, nil)
	if held != "" && held != pod.Status.NominatedNodeName { // it was not written yet
		s.freed(ctx, pod, held)
	}
	s.releaseRoom(ctx, pod)
}

// unwrap returns the last known state of an object whose deletion was missed.
func unwrap(obj any) any {
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return t.Obj
	}
	return obj
}
