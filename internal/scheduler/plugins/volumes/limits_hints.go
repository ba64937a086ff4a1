package volumes

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/scheduler/framework"
)

// EventsToRegister returns the events that raise a limit, bring a driver, take a volume off a node, or bring a claim.
func (*Limits) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		framework.Event(fwk.CSINode, fwk.Add, nil),
		framework.Event(fwk.CSINode, fwk.Update, raisedHint),
		framework.Event(fwk.CSIDriver, fwk.Update|fwk.Delete, waivedHint),
		framework.Event(fwk.Node, fwk.Add, nil),
		framework.Event(fwk.Pod, fwk.Delete, detachedHint),
		framework.Event(fwk.PersistentVolumeClaim, fwk.Add, claimHint),
		framework.Event(fwk.VolumeAttachment, fwk.Delete, attachmentHint),
	}, nil
}

// raisedHint is about a driver that has come, or whose limit is higher or gone.
func raisedHint(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, n, err := framework.EventObjects[*storagev1.CSINode](oldObj, newObj)
	if err != nil || old == nil || n == nil {
		return fwk.Queue, err
	}
	was, is := limitsOf(old), limitsOf(n)
	return framework.QueueWhen(slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		before, limited := was[d.Name]
		after, stillLimited := is[d.Name]
		isNew := !slices.ContainsFunc(old.Spec.Drivers, func(o storagev1.CSINodeDriver) bool { return o.Name == d.Name })
		return isNew || limited && (!stillLimited || after > before)
	}))
}

// waivedHint is about a driver that does not have to be on a node any more.
func waivedHint(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, d, err := framework.EventObjects[*storagev1.CSIDriver](oldObj, newObj)
	if err != nil || old == nil {
		return fwk.Queue, err
	}
	return framework.QueueWhen(ptr.Deref(old.Spec.PreventPodSchedulingIfMissing,
		false) && (d == nil || !ptr.Deref(d.Spec.PreventPodSchedulingIfMissing, false)))
}

// detachedHint is about a pod with volumes that had a node, or was to get one.
func detachedHint(_ klog.Logger, _ *v1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	gone, _, err := framework.EventObjects[*v1.Pod](oldObj, newObj)
	if err != nil || gone == nil {
		return fwk.Queue, err
	}
	placed := gone.Spec.NodeName != "" || gone.Status.NominatedNodeName != ""
	return framework.QueueWhen(placed && slices.ContainsFunc(gone.Spec.Volumes, mayBeAttached))
}

// attachmentHint is about a volume that is not attached any more.
func attachmentHint(_ klog.Logger, pod *v1.Pod, _, _ any) (fwk.QueueingHint, error) {
	return framework.QueueWhen(slices.ContainsFunc(pod.Spec.Volumes, mayBeAttached))
}
