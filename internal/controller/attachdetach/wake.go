package attachdetach

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/api/nodes"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claimusers"
)

// podChanged wakes the volumes of a pod that begins or ceases to need them.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	is, _ := obj.(*v1.Pod)
	if was != nil && is != nil && was.UID == is.UID && needs(was) == needs(is) {
		return
	}
	for _, p := range []*v1.Pod{was, is} {
		if p != nil && p.Spec.NodeName != "" {
			c.wakeVolumesOf(p)
		}
	}
}

func (c *Controller) wakeVolumesOf(p *v1.Pod) {
	c.wakeNames(ownOf(p))
	for _, key := range claimusers.ClaimsOf(p) {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			continue // a name with a slash is none
		}
		if claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name); err == nil { // it wakes them when it comes
			c.wakeVolume(claim.Spec.VolumeName)
		}
	}
}

// wakeVolume wakes the volume of a PersistentVolume, unless there is none yet: it wakes it when it comes.
func (c *Controller) wakeVolume(name string) {
	if pv, err := c.volumes.Get(name); err == nil {
		c.wakeNames(namesOf(pv))
	}
}

func (c *Controller) wakeNames(names []string) {
	for _, name := range names {
		c.loop.Add(name)
	}
}

// claimChanged wakes the volume that a claim is bound to, or was.
func (c *Controller) claimChanged(old, obj any) {
	was, _ := old.(*v1.PersistentVolumeClaim)
	is, _ := obj.(*v1.PersistentVolumeClaim)
	if was != nil && is != nil && was.UID == is.UID &&
		was.Spec.VolumeName == is.Spec.VolumeName && was.Status.Phase == is.Status.Phase {
		return
	}
	for _, claim := range []*v1.PersistentVolumeClaim{was, is} {
		if claim != nil {
			c.wakeVolume(claim.Spec.VolumeName)
		}
	}
}

// volumeChanged wakes the volume of a PersistentVolume, and attachments that the end of it makes orphans.
func (c *Controller) volumeChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		pv, ok := o.(*v1.PersistentVolume)
		if !ok {
			continue
		}
		c.wakeNames(namesOf(pv))
		c.wakeAttachments(byVolume, pv.Name)
	}
}

func (c *Controller) attachmentChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if a, ok := o.(*storagev1.VolumeAttachment); ok {
			c.wakeAttachment(a)
		}
	}
}

func (c *Controller) wakeAttachment(a *storagev1.VolumeAttachment) {
	if key := c.keyOf(a); key != "" {
		c.loop.Add(key)
	}
}

func (c *Controller) wakeAttachments(index, value string) {
	all, err := controller.LookUp[*storagev1.VolumeAttachment](c.attachmentIndex, index, value)
	if err != nil {
		klog.Background().Error(err, "Cannot look up attachments", "index", index, "value", value) // a programming error
		return
	}
	for _, a := range all {
		c.wakeAttachment(a)
	}
}

// driverChanged wakes all volumes of a driver that begins or ceases to have its volumes attached.
func (c *Controller) driverChanged(old, obj any) {
	was, _ := old.(*storagev1.CSIDriver)
	is, _ := obj.(*storagev1.CSIDriver)
	required := func(d *storagev1.CSIDriver) bool { return d == nil || ptr.Deref(d.Spec.AttachRequired, true) }
	if required(was) == required(is) {
		return
	}
	name := ptr.Deref(was, ptr.Deref(is, storagev1.CSIDriver{})).Name
	volumes, err := c.volumes.List(labels.Everything())
	if err != nil {
		return // a lister has no errors
	}
	for _, pv := range volumes {
		if driver, _, _ := attachments.SplitVolumeName(nameOf(pv)); driver == name {
			c.wakeNames(namesOf(pv))
		}
	}
}

// nodeChanged wakes the volumes that a node has, is said to have, or is to have, when something has changed about it
// that may matter to them. A kubelet's heartbeats are none.
func (c *Controller) nodeChanged(old, obj any) {
	was, _ := old.(*v1.Node)
	is, _ := obj.(*v1.Node)
	if was != nil && is != nil && sameToAll(was, is) {
		c.listsChanged(was, is)
		return
	}
	for _, n := range []*v1.Node{was, is} {
		if n != nil {
			c.wakeNames(mentioned(n))
		}
	}
	node := ptr.Deref(is, ptr.Deref(was, v1.Node{})).Name
	c.wakeAttachments(byNode, node)
	if is == nil || was != nil && managed(was) == managed(is) {
		return
	}
	pods, err := controller.LookUp[*v1.Pod](c.podIndex, byNode, node)
	if err != nil {
		klog.Background().Error(err, "Cannot look up pods", "node", node) // a programming error
		return
	}
	for _, p := range pods {
		c.wakeVolumesOf(p)
	}
}

// listsChanged wakes the volumes that are new in a node's lists, or not in them any more, and no others: each volume of
// a node changes them several times. An attachment without a volume may have been kept by them.
func (c *Controller) listsChanged(was, is *v1.Node) {
	changed := sets.New(listed(was)...).SymmetricDifference(sets.New(listed(is)...))
	if len(changed) == 0 {
		return
	}
	for in := range changed {
		if ours(in.name) {
			c.loop.Add(string(in.name))
		}
	}
	all, err := controller.LookUp[*storagev1.VolumeAttachment](c.attachmentIndex, byNode, is.Name)
	if err != nil {
		klog.Background().Error(err, "Cannot look up attachments", "node", is.Name) // a programming error
		return
	}
	for _, a := range all {
		if c.keyOf(a) == a.Name {
			c.loop.Add(a.Name)
		}
	}
}

// entry is a volume in one of a node's lists.
type entry struct {
	name  v1.UniqueVolumeName
	inUse bool
}

func listed(n *v1.Node) []entry {
	var out []entry
	for _, a := range n.Status.VolumesAttached {
		out = append(out, entry{a.Name, false})
	}
	for _, name := range n.Status.VolumesInUse {
		out = append(out, entry{name, true})
	}
	return out
}

func managed(n *v1.Node) bool {
	return metav1.HasAnnotation(n.ObjectMeta, attachments.ManagedAnnotation)
}

// sameToAll reports whether nothing has changed about a node that matters to all its volumes.
func sameToAll(a, b *v1.Node) bool {
	return a.UID == b.UID && managed(a) == managed(b) && told(a) == told(b) && nodes.IsReady(a) == nodes.IsReady(b) && lostForGood(a) == lostForGood(b)
}
