package framework

import (
	"context"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Shared is what the plugins of all profiles work with.
type Shared struct {
	Client     clientset.Interface
	KubeConfig *restclient.Config // may be nil
	Informers  informers.SharedInformerFactory
	Snapshot   fwk.MutableSnapshotSharedLister
	Nominator  *Nominator
	Activator  fwk.PodActivator
	Waiting    *WaitingPods
	Parallel   Parallelizer
	Extenders  []fwk.Extender
	Groups     fwk.PodGroupManager
	// NewDevices returns a manager of devices. It is called once, if a plugin asks for one.
	NewDevices func() (fwk.SharedDRAManager, error)

	devices struct {
		once    sync.Once
		manager atomic.Pointer[fwk.SharedDRAManager]
	}
	// Taken is the cache's, as it is now, for hints; it may be nil.
	Taken func(node string, by *v1.Pod) (has, taken fwk.Resource, pods int, known bool)
	// MemoNodes is from how many nodes on profiles remember what plugins said about pods of one shape.
	MemoNodes int
	// Recorder returns the recorder of a profile's events.
	Recorder func(profile string) events.EventRecorderLogger
}

var _ fwk.Handle = (*Profile)(nil)

// AddNominatedPod implements fwk.PodNominator.
func (p *Profile) AddNominatedPod(log klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	p.shared.Nominator.AddNominatedPod(log, pod, info)
}

// DeleteNominatedPodIfExists implements fwk.PodNominator.
func (p *Profile) DeleteNominatedPodIfExists(pod *v1.Pod) {
	p.shared.Nominator.DeleteNominatedPodIfExists(pod)
}

// UpdateNominatedPod implements fwk.PodNominator.
func (p *Profile) UpdateNominatedPod(log klog.Logger, old *v1.Pod, pod fwk.PodInfo) {
	p.shared.Nominator.UpdateNominatedPod(log, old, pod)
}

// NominatedPodsForNode implements fwk.PodNominator.
func (p *Profile) NominatedPodsForNode(node string) []fwk.PodInfo {
	return p.shared.Nominator.NominatedPodsForNode(node)
}

// Activate puts pods that wait into the active queue.
func (p *Profile) Activate(log klog.Logger, pods map[string]*v1.Pod) {
	p.shared.Activator.Activate(log, pods)
}

// Taken returns what a node has, and what is taken of it that can neither be preempted by this pod nor is
// about to be bound only. It reports false if that is not known.
func (p *Profile) Taken(node string, by *v1.Pod) (has, taken fwk.Resource, pods int, known bool) {
	if p.shared.Taken == nil {
		return nil, nil, 0, false
	}
	return p.shared.Taken(node, by)
}

// SnapshotSharedLister returns the cluster as the current cycle sees it.
func (p *Profile) SnapshotSharedLister() fwk.SharedLister { return p.shared.Snapshot }

// MutableSnapshotSharedLister returns the same, for PodGroupPostFilter plugins to try out what would help a pod group.
func (p *Profile) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return p.shared.Snapshot
}

// IterateOverWaitingPods calls the function for every pod that waits to be bound.
func (p *Profile) IterateOverWaitingPods(callback func(fwk.WaitingPod)) {
	for _, wp := range p.shared.Waiting.all() {
		callback(wp)
	}
}

// GetWaitingPod returns the pod if it waits to be bound, or nil.
func (p *Profile) GetWaitingPod(uid types.UID) fwk.WaitingPod {
	if wp := p.shared.Waiting.get(uid); wp != nil {
		return wp
	}
	return nil
}

// RejectWaitingPod rejects a pod that waits to be bound. It reports whether it waited.
func (p *Profile) RejectWaitingPod(uid types.UID) bool {
	wp := p.shared.Waiting.get(uid)
	return wp != nil && wp.Reject("", "removed")
}

// AddPodInPreBind records a binding that can still be stopped.
func (p *Profile) AddPodInPreBind(uid types.UID, cancel context.CancelCauseFunc) {
	w := p.shared.Waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	w.binding[uid] = &bindingPod{cancel: cancel}
}

// GetPodInPreBind returns the pod if it is being bound, or nil.
func (p *Profile) GetPodInPreBind(uid types.UID) fwk.PodInPreBind {
	w := p.shared.Waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.binding[uid]; b != nil {
		return b
	}
	return nil
}

// RemovePodInPreBind forgets a binding that is over.
func (p *Profile) RemovePodInPreBind(uid types.UID) {
	w := p.shared.Waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.binding, uid)
}

// ClientSet returns the client of the API.
func (p *Profile) ClientSet() clientset.Interface { return p.shared.Client }

// KubeConfig returns how to reach the API server, or nil if the plugins run in its process.
func (p *Profile) KubeConfig() *restclient.Config { return p.shared.KubeConfig }

// EventRecorder returns the recorder of this profile's events.
func (p *Profile) EventRecorder() events.EventRecorderLogger { return p.shared.Recorder(p.Name) }

// SharedInformerFactory returns the informers. What a plugin asks for in its factory is synced before
// the first pod is scheduled.
func (p *Profile) SharedInformerFactory() informers.SharedInformerFactory { return p.shared.Informers }

// SharedDRAManager returns what is known about devices, and promised of them; nil if that cannot be watched. A plugin
// must ask for it in its factory, as for any informer.
func (p *Profile) SharedDRAManager() fwk.SharedDRAManager {
	d := &p.shared.devices
	d.once.Do(func() {
		if m, err := p.shared.NewDevices(); err == nil {
			d.manager.Store(&m)
		}
	})
	return p.KnownDevices()
}

// KnownDevices is SharedDRAManager, but nil if no plugin has asked for that. A cluster without devices need not serve
// them to a scheduler that has no use for them.
func (p *Profile) KnownDevices() fwk.SharedDRAManager {
	if m := p.shared.devices.manager.Load(); m != nil {
		return *m
	}
	return nil
}

// SharedCSIManager returns what is known about the CSI drivers of nodes. A plugin must ask for it in its factory, as for
// any informer.
func (p *Profile) SharedCSIManager() fwk.CSIManager {
	return csiNodes{p.shared.Informers.Storage().V1().CSINodes().Lister()}
}

// csiNodes are the CSINodes as the framework asks for them.
type csiNodes struct{ storagelisters.CSINodeLister }

// CSINodes returns the lister itself.
func (c csiNodes) CSINodes() fwk.CSINodeLister { return c }

// List returns all of them.
func (c csiNodes) List() ([]*storagev1.CSINode, error) {
	return c.CSINodeLister.List(labels.Everything())
}

// Extenders returns the configured extenders.
func (p *Profile) Extenders() []fwk.Extender { return p.shared.Extenders }

// Parallelizer returns what runs a function for many nodes.
func (p *Profile) Parallelizer() fwk.Parallelizer { return p.shared.Parallel }

// APIDispatcher returns nil: API calls are made where they arise.
func (p *Profile) APIDispatcher() fwk.APIDispatcher { return nil }

// APICacher returns nil: API calls are made where they arise.
func (p *Profile) APICacher() fwk.APICacher { return nil }

// ProfileName returns the schedulerName.
func (p *Profile) ProfileName() string { return p.Name }

// PodGroupManager returns the pod groups, with their pods as they are now.
func (p *Profile) PodGroupManager() fwk.PodGroupManager { return p.shared.Groups }

// SignPod returns what pods of the same shape have in common (KEP-5598), or nil if a plugin does not say.
func (p *Profile) SignPod(ctx context.Context, pod *v1.Pod) fwk.PodSignature {
	shape, signed := p.sign(ctx, pod)
	if len(signed) < len(p.signers) {
		return nil
	}
	return fwk.PodSignature(shape)
}

// PreemptionPolicy returns spec.preemptionPolicy, or its default.
func PreemptionPolicy(pod *v1.Pod) v1.PreemptionPolicy {
	if p := pod.Spec.PreemptionPolicy; p != nil {
		return *p
	}
	return v1.PreemptLowerPriority
}

// Priority returns spec.priority, or 0 if there is none.
func Priority(pod *v1.Pod) int32 {
	if p := pod.Spec.Priority; p != nil {
		return *p
	}
	return 0
}
