package attachdetach

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claimusers"
)

// sync brings a volume to where it should be. The key is its name, or that of an attachment whose volume is gone.
func (c *Controller) sync(ctx context.Context, key string) error {
	name := v1.UniqueVolumeName(key)
	if !ours(name) {
		return c.syncOrphan(ctx, key)
	}
	remembered := c.memories.of(key)
	defer c.memories.tidy(key)
	f, err := c.facts(name, remembered)
	if err != nil {
		return err
	}
	p := decide(f)
	if !p.again.IsZero() {
		c.loop.AddAfter(key, p.again.Sub(f.now))
	}
	return c.carryOut(ctx, f, remembered, p)
}

// facts collects what decides about a volume, from the informers and from what was done before.
func (c *Controller) facts(name v1.UniqueVolumeName, remembered *memory) (*facts, error) {
	f := &facts{name: name, direct: attachments.KindByNode(name) != "", attachable: true, now: time.Now(), options: c.options}
	var err error
	if !f.direct {
		f.driver, f.handle, _ = attachments.SplitVolumeName(name)
		if f.attachable, err = c.attachable(f.driver); err != nil {
			return nil, err
		}
	}
	places := map[string]*place{}
	at := func(node string) *place {
		if places[node] == nil {
			places[node] = &place{node: node}
		}
		return places[node]
	}
	if f.exclusive, err = c.users(name, at); err != nil {
		return nil, err
	}
	nodes, err := controller.LookUp[*v1.Node](c.nodeIndex, byName, string(name))
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		at(n.Name)
	}
	for node := range remembered.places {
		at(node)
	}
	for _, node := range slices.Sorted(maps.Keys(places)) {
		p := places[node]
		if !f.direct {
			if p.attachment, err = controller.Found(c.attachments.Get(attachments.Name(f.driver, f.handle, node))); err != nil {
				return nil, err
			}
		}
		if p.state, err = controller.Found(c.nodes.Get(node)); err != nil {
			return nil, err
		}
		f.recall(p, remembered)
		f.places = append(f.places, *p)
	}
	return f, nil
}

// users adds the pods that need a volume, and the nodes that have an attachment of it. It reports whether one node at a
// time may have the volume.
func (c *Controller) users(name v1.UniqueVolumeName, at func(node string) *place) (exclusive bool, err error) {
	volumes, err := controller.LookUp[*v1.PersistentVolume](c.volumeIndex, byName, string(name))
	if err != nil {
		return false, err
	}
	slices.SortFunc(volumes, func(a, b *v1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	for _, pv := range volumes {
		exclusive = exclusive || !shared(pv)
		pods, err := c.podsOf(pv)
		if err != nil {
			return false, err
		}
		for _, pod := range pods {
			p := at(pod.Spec.NodeName)
			p.pods = append(p.pods, pod)
			if p.volume == nil {
				p.volume = pv
			}
		}
		all, err := controller.LookUp[*storagev1.VolumeAttachment](c.attachmentIndex, byVolume, pv.Name)
		if err != nil {
			return false, err
		}
		for _, a := range all {
			if isFor(a, name) {
				at(a.Spec.NodeName)
			}
		}
	}
	return exclusive, c.ownUsers(name, at)
}

// ownUsers is users for the pods that describe the volume themselves. Nothing says whether one node at a time may have it.
func (c *Controller) ownUsers(name v1.UniqueVolumeName, at func(node string) *place) error {
	all, err := controller.LookUp[*v1.Pod](c.podIndex, byName, string(name))
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(p *v1.Pod) bool { return !needs(p) })
	slices.SortFunc(all, older)
	for _, pod := range all {
		p := at(pod.Spec.NodeName)
		p.pods = append(p.pods, pod)
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; p.own == "" && attachments.OwnByNode(&v.VolumeSource) == name {
				p.own = v.Name
			}
		}
	}
	return nil
}

// podsOf returns the pods that need a volume: they have a node, something of them may run, and the volume is bound to
// their claim.
func (c *Controller) podsOf(pv *v1.PersistentVolume) ([]*v1.Pod, error) {
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return nil, nil
	}
	claim, err := controller.Found(c.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name))
	if err != nil || claim == nil || claim.UID != ref.UID ||
		claim.Spec.VolumeName != pv.Name || claim.Status.Phase != v1.ClaimBound {
		return nil, err
	}
	all, err := claimusers.Of(c.podIndex, ref.Namespace+"/"+ref.Name)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p *v1.Pod) bool { return !needs(p) || !has(p, claim) })
	slices.SortFunc(all, older)
	return all, nil
}

// has reports whether a pod that names the claim may use it: of those that were made for a pod, only its own.
func has(p *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName == claim.Name
		}
		return v.Ephemeral != nil && ephemeral.VolumeClaimName(p, &v) == claim.Name && ephemeral.VolumeIsForPod(p, claim) == nil
	})
}

// recall adds what was done at a place before, and forgets what no longer matters.
func (f *facts) recall(p *place, remembered *memory) {
	t := remembered.at(p.node)
	switch {
	case f.direct && p.state != nil && f.reported(p): // remembered for when the node is gone
		t.uncertain, t.node = true, p.state.UID
	case f.direct && p.state != nil: // a node that was made anew may have a kubelet that has the volume from before
		t.uncertain = t.uncertain && t.node != p.state.UID && (!told(p.state) || uses(p.state, f.name))
	case p.attachment != nil:
		t.uncertain = false
	}
	f.observe(p, t)
	if !t.uncertain {
		t.node = ""
	}
	p.uncertain = t.uncertain
	there := p.attachment != nil || p.uncertain
	switch {
	case f.needed(p) || !there:
		t.unneeded = time.Time{}
	case t.unneeded.IsZero():
		t.unneeded = f.now
	}
	p.unneeded = t.unneeded
	if *t == (trace{}) {
		delete(remembered.places, p.node)
	}
}

// attachable reports whether a driver has its volumes attached, which it has unless its CSIDriver says no.
func (c *Controller) attachable(driver string) (bool, error) {
	d, err := controller.Found(c.drivers.Get(driver))
	return d == nil || ptr.Deref(d.Spec.AttachRequired, true), err
}

// syncOrphan has an attachment deleted whose volume is gone, so that nothing else leads to it.
func (c *Controller) syncOrphan(ctx context.Context, name string) error {
	a, err := controller.Found(c.attachments.Get(name))
	if err != nil || a == nil || a.DeletionTimestamp != nil || len(volumeOf(a)) == 0 {
		return err
	}
	if key := c.keyOf(a); key != name {
		c.loop.Add(key) // it was not, or is not any more
		return nil
	}
	// The informers of volumes and of nodes may be behind that of attachments.
	_, err = c.client.CoreV1().PersistentVolumes().Get(ctx, volumeOf(a)[0], metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	node, err := controller.Found(c.client.CoreV1().Nodes().Get(ctx, a.Spec.NodeName, metav1.GetOptions{}))
	if err != nil || node != nil && mentions(node, a) != "" {
		return err
	}
	if err := c.remove(ctx, name, a.Name, a); err != nil {
		return fmt.Errorf("attachment of volume %s, which is gone: %w", volumeOf(a)[0], err)
	}
	return nil
}

// keyOf returns the key of an attachment: its volume's, its own if the volume is gone, "" if it is not made here.
func (c *Controller) keyOf(a *storagev1.VolumeAttachment) string {
	names := volumeOf(a)
	if len(names) == 0 || !attachments.IsName(a.Name) {
		return ""
	}
	pv, err := c.volumes.Get(names[0])
	if err == nil {
		if name := nameOf(pv); name != "" && isFor(a, name) {
			return string(name)
		}
		return ""
	}
	if node, err := c.nodes.Get(a.Spec.NodeName); err == nil {
		if name := mentions(node, a); name != "" {
			return name
		}
	}
	return a.Name
}

// mentions returns the name of an attachment's volume if the node reports to have it, or to use it.
func mentions(n *v1.Node, a *storagev1.VolumeAttachment) string {
	for _, name := range mentioned(n) {
		if isFor(a, v1.UniqueVolumeName(name)) {
			return name
		}
	}
	return ""
}
