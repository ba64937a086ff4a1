package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/controller"
)

// carryOut does what a plan says. That a step fails at one node does not keep others from what they need.
func (c *Controller) carryOut(ctx context.Context, f *facts, remembered *memory, p plan) error {
	var errs []error
	for _, s := range p.steps {
		var err error
		switch s.action {
		case attach:
			if err = c.attach(ctx, f, s.at, remembered.at(s.at.node)); err != nil {
				p.says = append(p.says, refused(s.at, err)...)
			}
		case report:
			err = c.report(ctx, f, s.at)
		case withdraw:
			_, _, err = c.mark(ctx, f.name, s.at.node, withdrawn)
		case detach:
			err = c.detach(ctx, f, s, remembered.at(s.at.node))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %s at node %s: %w", f.name, s.at.node, err))
		}
	}
	c.tell(remembered, p.says)
	return errors.Join(errs...)
}

// attach makes the attachment of a volume and a node.
func (c *Controller) attach(ctx context.Context, f *facts, at *place, t *trace) error {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachments.Name(f.driver, f.handle, at.node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: f.driver, NodeName: at.node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &at.volume.Name},
		},
	}
	// Until somebody says otherwise it may exist, and then no other node gets the volume.
	t.uncertain, t.asked, t.released = true, f.now, time.Time{}
	answer, err := c.client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
	switch {
	case err == nil:
		t.uncertain = false
		c.wroteAttachments.Wrote(string(f.name), answer)
		klog.FromContext(ctx).V(2).Info("Asked for volume to be attached",
			"volume", f.name, "node", at.node, "attachment", a.Name)
		return nil
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", controller.ErrBehind, err)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		t.uncertain, t.asked = false, time.Time{}
		operation(attaching, f.plugin(), failure, at.volume, 0)
	}
	return fmt.Errorf("create attachment %s: %w", a.Name, err)
}

// refused says why the API server does not take an attachment. What only takes time is nothing to tell.
func refused(at *place, err error) []saying {
	if errors.Is(err, controller.ErrBehind) {
		return nil
	}
	var out []saying
	for _, pod := range at.pods {
		out = append(out, saying{pod, err.Error(), about("AttachVolume.Attach failed", at, ": "+err.Error())})
	}
	return out
}

// report says in the status of a node that the volume is attached, and tells the pods that wait for it.
func (c *Controller) report(ctx context.Context, f *facts, at *place) error {
	_, changed, err := c.mark(ctx, f.name, at.node, attached)
	if err != nil || !changed {
		return err
	}
	if f.direct {
		operation(attaching, f.plugin(), success, at.volume, time.Since(f.now))
	}
	klog.FromContext(ctx).Info("Volume is attached", "volume", f.name, "node", at.node)
	for _, pod := range at.pods {
		c.events.Event(pod, v1.EventTypeNormal, "SuccessfulAttachVolume", about("AttachVolume.Attach succeeded", at, ""))
	}
	return nil
}

// detach deletes the attachment of a volume and a node, after the node's status no longer says that the volume is
// attached, and unless it says then that the volume is in use: the informer may be behind. A direct volume has no
// attachment that would stay: in the same write it must not be in use.
func (c *Controller) detach(ctx context.Context, f *facts, s step, t *trace) error {
	how := withdrawn
	if f.direct && s.force == "" {
		how = withdrawnIfUnused
	}
	node, _, err := c.mark(ctx, f.name, s.at.node, how)
	if err != nil {
		return err
	}
	if !f.safe(node, s.force) {
		return nil // the informer is about to say so
	}
	name := "none"
	if f.direct {
		operation(detaching, f.plugin(), success, s.at.volume, time.Since(f.now))
		if s.at.state == nil { // another node may have it now, and of a node that is gone nothing else says so
			c.loop.Add(string(f.name))
		}
	} else {
		name = attachments.Name(f.driver, f.handle, s.at.node)
		if err := c.remove(ctx, string(f.name), name, s.at.attachment); err != nil {
			return err
		}
		t.released = f.now
	}
	t.uncertain, t.node = false, ""
	if s.force != "" {
		forced.WithLabelValues(s.force).Inc()
		klog.FromContext(ctx).Info("Volume is detached although it is not known to be safe",
			"volume", f.name, "node", s.at.node, "reason", s.force)
		return nil
	}
	klog.FromContext(ctx).V(2).Info("Volume is given up",
		"volume", f.name, "node", s.at.node, "attachment", name)
	return nil
}

// remove deletes an attachment on behalf of a key: the one that is known, or one that may have been made.
func (c *Controller) remove(ctx context.Context, key, name string, known *storagev1.VolumeAttachment) error {
	var o metav1.DeleteOptions
	if known != nil {
		o.Preconditions = &metav1.Preconditions{UID: &known.UID}
	}
	if err := c.client.StorageV1().VolumeAttachments().Delete(ctx, name, o); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete attachment %s: %w", name, err)
	}
	if known != nil {
		c.wroteAttachments.Deleted(key, known)
	}
	return nil
}

// marking is what a node's status is to say of a volume.
type marking int

const (
	attached marking = iota
	withdrawn
	withdrawnIfUnused // withdrawn, unless the node says that it uses the volume
)

// mark has the status of a node say that a volume is attached, or no longer say it. It returns the node as it is then,
// nil if there is none, and whether that is new. The list is one field of the node: a write fails if the node has
// changed meanwhile.
func (c *Controller) mark(ctx context.Context, volume v1.UniqueVolumeName, name string, how marking) (
	node *v1.Node, changed bool, err error,
) {
	c.statuses.LockKey(name)
	defer func() { err = errors.Join(err, c.statuses.UnlockKey(name)) }()
	node, err = controller.Found(c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}))
	if err != nil || node == nil || reports(node, volume) == (how == attached) || how == withdrawnIfUnused && uses(node, volume) {
		return node, false, err
	}
	list := slices.DeleteFunc(slices.Clone(node.Status.VolumesAttached), func(a v1.AttachedVolume) bool {
		return a.Name == volume
	})
	if how == attached {
		list = append(list, v1.AttachedVolume{Name: volume})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"status":   map[string]any{"volumesAttached": list},
	})
	if err != nil {
		return nil, false, err
	}
	node, err = controller.Found(c.client.CoreV1().Nodes().
		Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))
	if err != nil {
		return nil, false, fmt.Errorf("write the status of node %s: %w", name, err)
	}
	if node != nil {
		c.wroteNodes.Wrote(string(volume), node)
	}
	return node, node != nil, nil
}

// tell records events of pods, unless the pod was told the same before, and nothing else since.
func (c *Controller) tell(remembered *memory, says []saying) {
	said := map[types.UID][]string{}
	for _, s := range says {
		if remembered.news(s.pod.UID, s.topic) {
			c.events.Event(s.pod, v1.EventTypeWarning, "FailedAttachVolume", s.message)
		}
		said[s.pod.UID] = append(said[s.pod.UID], s.topic)
	}
	remembered.said = said
}
