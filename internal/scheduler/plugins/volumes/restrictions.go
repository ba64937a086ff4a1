package volumes

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// Restrictions is VolumeRestrictions: it keeps a claim that only one pod may use to one pod, and a disk that only one
// node or pod may write to apart from others that use it.
type Restrictions struct {
	claims   corelisters.PersistentVolumeClaimLister
	snapshot func() fwk.SharedLister
}

var (
	_ fwk.PreFilterPlugin     = (*Restrictions)(nil)
	_ fwk.PreFilterExtensions = (*Restrictions)(nil)
	_ fwk.FilterPlugin        = (*Restrictions)(nil)
	_ fwk.EnqueueExtensions   = (*Restrictions)(nil)
)

// NewRestrictions returns the plugin.
func NewRestrictions(h fwk.Handle) (fwk.Plugin, error) {
	return &Restrictions{
		claims: h.SharedInformerFactory().Core().V1().PersistentVolumeClaims().Lister(), snapshot: h.SnapshotSharedLister,
	}, nil
}

const restrictionsKey fwk.StateKey = "VolumeRestrictions"

// restrictionsState has the pod's claims with the mode ReadWriteOncePod, and how often pods that have a node use
// them.
type restrictionsState struct {
	namespace string
	claims    sets.Set[string]
	used      int
}

// Clone copies the count.
func (s *restrictionsState) Clone() fwk.StateData {
	c := *s
	return &c
}

// count adds or takes away another pod's uses.
func (s *restrictionsState) count(pod *v1.Pod, sign int) {
	if pod.Namespace != s.namespace {
		return
	}
	for i := range pod.Spec.Volumes {
		if c := pod.Spec.Volumes[i].PersistentVolumeClaim; c != nil && s.claims.Has(c.ClaimName) {
			s.used += sign
		}
	}
}

// Name returns upstream's name.
func (*Restrictions) Name() string { return "VolumeRestrictions" }

// PreFilter looks for other users of the pod's claims, in the whole cluster. It skips pods that conflict with nobody.
func (r *Restrictions) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod,
	_ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	claims, err := r.exclusive(pod)
	if apierrors.IsNotFound(err) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	s := &restrictionsState{namespace: pod.Namespace, claims: claims}
	if claims.Len() > 0 {
		nodes, err := r.snapshot().NodeInfos().List()
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		for _, n := range nodes {
			for name := range claims {
				s.used += n.GetPVCRefCounts()[key(pod.Namespace, name)]
			}
		}
	}
	if s.used == 0 && !slices.ContainsFunc(pod.Spec.Volumes, isDisk) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(restrictionsKey, s)
	return nil, nil
}

// exclusive returns the pod's claims with the mode ReadWriteOncePod.
func (r *Restrictions) exclusive(pod *v1.Pod) (sets.Set[string], error) {
	out := sets.New[string]()
	for _, u := range uses(pod) {
		if u.ephemeral {
			continue // no other pod may use it anyway
		}
		claim, err := r.claims.PersistentVolumeClaims(pod.Namespace).Get(u.name)
		if err != nil {
			return nil, err
		}
		if slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) {
			out.Insert(u.name)
		}
	}
	return out, nil
}

// PreFilterExtensions returns the plugin: pods that come and go use claims.
func (r *Restrictions) PreFilterExtensions() fwk.PreFilterExtensions { return r }

// AddPod counts one more pod.
func (*Restrictions) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, add fwk.PodInfo,
	_ fwk.NodeInfo) *fwk.Status {
	return count(state, add.GetPod(), 1)
}

// RemovePod counts one pod less.
func (*Restrictions) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, remove fwk.PodInfo,
	_ fwk.NodeInfo) *fwk.Status {
	return count(state, remove.GetPod(), -1)
}

func count(state fwk.CycleState, pod *v1.Pod, sign int) *fwk.Status {
	s, st := framework.ReadState[*restrictionsState](state, restrictionsKey)
	if st.IsSuccess() {
		s.count(pod, sign)
	}
	return st
}

// Filter looks for conflicts with the pods of the node.
func (*Restrictions) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	for _, p := range n.GetPods() {
		if disksConflict(pod, p.GetPod()) {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) had no available disk")
		}
	}
	s, st := framework.ReadState[*restrictionsState](state, restrictionsKey)
	if st.IsSuccess() && s.used > 0 {
		return fwk.NewStatus(fwk.Unschedulable,
			"node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
	}
	return st
}

// isDisk reports whether a volume is a disk of which pods of one node might both want the only access.
func isDisk(v v1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// disksConflict reports whether two pods cannot have their disks on the same node.
func disksConflict(a, b *v1.Pod) bool {
	for i := range a.Spec.Volumes {
		if !isDisk(a.Spec.Volumes[i]) {
			continue
		}
		for j := range b.Spec.Volumes {
			if sameDisk(&a.Spec.Volumes[i], &b.Spec.Volumes[j]) {
				return true
			}
		}
	}
	return false
}

// sameDisk reports whether two volumes are the same disk and not both just read. EBS cannot even be read twice.
func sameDisk(a, b *v1.Volume) bool {
	if x, y := a.GCEPersistentDisk, b.GCEPersistentDisk; x != nil && y != nil {
		return x.PDName == y.PDName && (!x.ReadOnly || !y.ReadOnly)
	}
	if x, y := a.AWSElasticBlockStore, b.AWSElasticBlockStore; x != nil && y != nil {
		return x.VolumeID == y.VolumeID
	}
	if x, y := a.ISCSI, b.ISCSI; x != nil && y != nil {
		return x.IQN == y.IQN && (!x.ReadOnly || !y.ReadOnly)
	}
	if x, y := a.RBD, b.RBD; x != nil && y != nil {
		return x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && (!x.ReadOnly || !y.ReadOnly) &&
			slices.ContainsFunc(x.CephMonitors, func(m string) bool { return slices.Contains(y.CephMonitors, m) })
	}
	return false
}

// EventsToRegister returns the events that free a claim or a disk, or bring a claim.
func (*Restrictions) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		framework.Event(fwk.Pod, fwk.Delete, freedHint),
		framework.Event(fwk.Node, fwk.Add, nil),
		framework.Event(fwk.PersistentVolumeClaim, fwk.Add, claimHint),
	}, nil
}

// freedHint is about the end of a pod that used the same claim or disk.
func freedHint(_ klog.Logger, pod *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	gone, _, err := framework.EventObjects[*v1.Pod](oldObj, newObj)
	if err != nil || gone == nil {
		return fwk.Queue, err
	}
	if gone.Namespace == pod.Namespace {
		mine := uses(pod)
		for _, u := range uses(gone) {
			if !u.ephemeral && slices.Contains(mine, u) {
				return fwk.Queue, nil
			}
		}
	}
	return framework.QueueWhen(disksConflict(pod, gone))
}
