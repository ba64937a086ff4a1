package volumes

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/scheduler/framework"
)

// Limits is NodeVolumeLimits: it keeps CSI drivers from having to attach more volumes to a node than they can, and
// pods off nodes that lack a driver which asks for that.
type Limits struct {
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	classes     storagelisters.StorageClassLister
	drivers     storagelisters.CSIDriverLister
	csiNodes    fwk.CSINodeLister
	attachments cache.Indexer // by node
}

var (
	_ fwk.PreFilterPlugin   = (*Limits)(nil)
	_ fwk.FilterPlugin      = (*Limits)(nil)
	_ fwk.EnqueueExtensions = (*Limits)(nil)
)

// NewLimits returns the plugin.
func NewLimits(h fwk.Handle) (fwk.Plugin, error) {
	f := h.SharedInformerFactory()
	attachments := f.Storage().V1().VolumeAttachments().Informer()
	if err := framework.AddIndex(attachments, byNode,
		func(a *storagev1.VolumeAttachment) []string { return []string{a.Spec.NodeName} }); err != nil {
		return nil, err
	}
	return &Limits{
		claims: f.Core().V1().PersistentVolumeClaims().Lister(), volumes: f.Core().V1().PersistentVolumes().Lister(),
		classes: f.Storage().V1().StorageClasses().Lister(), drivers: f.Storage().V1().CSIDrivers().Lister(),
		csiNodes: h.SharedCSIManager().CSINodes(), attachments: attachments.GetIndexer(),
	}, nil
}

// attachable is a volume of a CSI driver. One that does not exist yet has no handle, but the claim for which it will
// be made.
type attachable struct{ driver, handle, claim string }

// Name returns upstream's name.
func (*Limits) Name() string { return "NodeVolumeLimits" }

// PreFilter skips pods without volumes of CSI drivers.
func (*Limits) PreFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult,
	*fwk.Status) {
	if !slices.ContainsFunc(pod.Spec.Volumes, mayBeAttached) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, nil
}

// mayBeAttached reports whether a volume may be one of a CSI driver.
func mayBeAttached(v v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || translator.IsInlineMigratable(&v)
}

// PreFilterExtensions returns nil: Filter looks at the node itself.
func (*Limits) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter counts, for each driver that has a limit, the volumes of the node's pods, what is attached otherwise, and
// what this pod brings.
func (l *Limits) Filter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	csiNode, err := l.csiNodes.Get(n.Node().Name)
	if err != nil {
		csiNode = nil // it may not have CSI drivers at all
	}
	brought := map[attachable]bool{}
	err = l.add(brought, pod, csiNode)
	if apierrors.IsNotFound(err) {
		return never(err.Error())
	}
	if err != nil {
		return fwk.AsStatus(err)
	}
	limits := limitsOf(csiNode)
	limited := false
	for v := range brought {
		if st := l.installed(v.driver, csiNode); !st.IsSuccess() {
			return st
		}
		_, ok := limits[v.driver]
		limited = limited || ok
	}
	if !limited {
		return nil
	}
	there, err := l.attached(n, csiNode)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if exceeds(limits, there, brought) {
		return fwk.NewStatus(fwk.Unschedulable, "node(s) exceed max volume count")
	}
	return nil
}

// limitsOf returns how many volumes drivers can attach to a node. A driver that does not say so has no limit.
func limitsOf(n *storagev1.CSINode) map[string]int {
	out := map[string]int{}
	if n == nil {
		return out
	}
	for _, d := range n.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			out[d.Name] = int(*d.Allocatable.Count)
		}
	}
	return out
}

// onTheNode has the volumes of a node: those that its pods use, and others that are attached to it.
type onTheNode struct {
	used   map[attachable]bool
	others map[attachable]bool
}

// exceeds reports whether a driver would have more than it can, because of what is brought.
func exceeds(limits map[string]int, there onTheNode, brought map[attachable]bool) bool {
	count := map[string]int{}
	for v := range there.used {
		count[v.driver]++
	}
	for v := range there.others {
		if !there.used[v] {
			count[v.driver]++
		}
	}
	more := map[string]bool{}
	for v := range brought {
		if !there.used[v] {
			count[v.driver]++
			more[v.driver] = true
		}
	}
	for driver := range more {
		if limit, ok := limits[driver]; ok && count[driver] > limit {
			return true
		}
	}
	return false
}

// installed returns whether a driver is on the node, if that matters to it (KEP-5030).
func (l *Limits) installed(driver string, n *storagev1.CSINode) *fwk.Status {
	d, err := l.drivers.Get(driver)
	switch {
	case apierrors.IsNotFound(err):
		return nil // it may not be a CSI driver
	case err != nil:
		return fwk.AsStatus(fmt.Errorf("error getting CSIDriver for provider %s: %w", driver, err))
	case !ptr.Deref(d.Spec.PreventPodSchedulingIfMissing, false):
		return nil
	case n != nil && slices.ContainsFunc(n.Spec.Drivers,
		func(d storagev1.CSINodeDriver) bool { return d.Name == driver }):
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, driver+" CSI driver is not installed on the node")
}

// attached looks up the volumes of a node.
func (l *Limits) attached(n fwk.NodeInfo, csiNode *storagev1.CSINode) (onTheNode, error) {
	out := onTheNode{used: map[attachable]bool{}, others: map[attachable]bool{}}
	for _, p := range n.GetPods() {
		if err := l.add(out.used, p.GetPod(), csiNode); err != nil && !apierrors.IsNotFound(err) {
			return out, err
		}
	}
	objs, err := l.attachments.ByIndex(byNode, n.Node().Name)
	if err != nil {
		return out, err
	}
	for _, obj := range objs {
		a, ok := obj.(*storagev1.VolumeAttachment)
		if !ok || a.Spec.Attacher == "" || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if pv, err := l.volumes.Get(*a.Spec.Source.PersistentVolumeName); err == nil && pv.Spec.CSI != nil {
			out.others[attachable{driver: a.Spec.Attacher, handle: pv.Spec.CSI.VolumeHandle}] = true
		}
	}
	return out, nil
}

// add adds a pod's volumes of CSI drivers. A claim that does not exist is left out, and told at the end.
func (l *Limits) add(to map[attachable]bool, pod *v1.Pod, csiNode *storagev1.CSINode) error {
	var gone error
	for i := range pod.Spec.Volumes {
		v, err := l.of(pod, &pod.Spec.Volumes[i], csiNode)
		switch {
		case apierrors.IsNotFound(err):
			gone = err
		case err != nil:
			return err
		case v != nil:
			to[*v] = true
		}
	}
	return gone
}

// of returns what a driver would attach for a volume, or nil.
func (l *Limits) of(pod *v1.Pod, v *v1.Volume, csiNode *storagev1.CSINode) (*attachable, error) {
	var name string
	switch {
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = ephemeral.VolumeClaimName(pod, v)
	default:
		return inline(pod, v, csiNode)
	}
	claim, err := l.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	if err != nil {
		return nil, fmt.Errorf("looking up PVC %s/%s: %w", pod.Namespace, name, err)
	}
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, err
		}
	}
	pv, err := l.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return l.future(claim, csiNode), nil // it is not there yet, or not any more
	}
	if err != nil {
		return nil, err
	}
	if pv.Spec.CSI != nil {
		return &attachable{driver: pv.Spec.CSI.Driver, handle: pv.Spec.CSI.VolumeHandle}, nil
	}
	if csiNode == nil || !translator.IsPVMigratable(pv) {
		return nil, nil
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil || !slices.Contains(takenOver, plugin) {
		return nil, nil //nolint:nilerr // what cannot be translated does not count, as upstream has it
	}
	there, err := translator.TranslateInTreePVToCSI(klog.Background(), pv)
	if err != nil || there.Spec.CSI == nil {
		return nil, nil //nolint:nilerr // what cannot be translated does not count, as upstream has it
	}
	return &attachable{driver: there.Spec.CSI.Driver, handle: there.Spec.CSI.VolumeHandle}, nil
}

// future returns the volume that a claim without one will have, by its class. Without a class it is nobody's.
func (l *Limits) future(claim *v1.PersistentVolumeClaim, csiNode *storagev1.CSINode) *attachable {
	class, err := l.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err != nil {
		return nil
	}
	driver := class.Provisioner
	if translator.IsMigratableIntreePluginByName(driver) {
		if csiNode == nil || !slices.Contains(takenOver, driver) {
			return nil
		}
		if driver, err = translator.GetCSINameFromInTreeName(driver); err != nil {
			return nil
		}
	}
	return &attachable{driver: driver, claim: keyOf(claim)}
}

// inline returns what a driver that has taken over attaches for a volume that is in the pod's own specification.
func inline(pod *v1.Pod, v *v1.Volume, csiNode *storagev1.CSINode) (*attachable, error) {
	if csiNode == nil || !translator.IsInlineMigratable(v) {
		return nil, nil
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(nil, v)
	if err != nil {
		return nil, fmt.Errorf("looking up provisioner name for volume %s: %w", v.Name, err)
	}
	if !slices.Contains(takenOver, plugin) {
		return nil, nil
	}
	pv, err := translator.TranslateInTreeInlineVolumeToCSI(klog.Background(), v, pod.Namespace)
	if err != nil {
		return nil, fmt.Errorf("converting volume(%s) from inline to csi: %w", v.Name, err)
	}
	if pv.Spec.CSI == nil {
		return nil, nil
	}
	return &attachable{driver: pv.Spec.CSI.Driver, handle: pv.Spec.CSI.VolumeHandle}, nil
}
