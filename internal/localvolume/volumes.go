package localvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/controller"
)

// step is what is to be done about a volume.
type step string

const (
	keep step = ""
	// guard gives it the finalizer that keeps it until its directory is removed; unguard takes that away, because the
	// directory is to stay.
	guard, unguard step = "guard", "unguard"
	// discard removes the directory, and then the volume.
	discard step = "discard"
)

// decide says what is to be done about a volume that this provisioner has made.
func decide(pv *v1.PersistentVolume) step {
	guarded := slices.Contains(pv.Finalizers, volume.PVDeletionProtectionFinalizer)
	switch {
	case pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete:
		if guarded {
			return unguard
		}
	case pv.Status.Phase == v1.VolumeReleased, pv.DeletionTimestamp != nil && guarded && unclaimed(pv):
		return discard
	case !guarded && pv.DeletionTimestamp == nil:
		return guard
	}
	return keep
}

// unclaimed reports whether nobody can have the volume any more: it is as good as released.
func unclaimed(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeFailed || pv.Spec.ClaimRef == nil
}

// ours reports whether a volume was made by a provisioner of this sort, on whichever node.
func ours(pv *v1.PersistentVolume) bool {
	return pv.Annotations[volume.AnnDynamicallyProvisioned] == classes.LocalProvisioner
}

// volumeChanged wakes for volumes that were made by provisioners of this sort.
func (p *Provisioner) volumeChanged(old, obj any) {
	if pv, ok := obj.(*v1.PersistentVolume); ok && ours(pv) {
		p.volumes.AddObject(old, obj)
	}
	if pv, ok := old.(*v1.PersistentVolume); ok && obj == nil {
		p.missed(pv.Name, false)
	}
}

// syncVolume removes a volume that is not needed any more.
func (p *Provisioner) syncVolume(ctx context.Context, name string) error {
	pv, err := p.volumeLister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	todo := decide(pv)
	node, err := p.of(pv)
	switch {
	case err != nil:
		return err
	case node == nil && todo == discard:
		return p.abandon(ctx, pv)
	case node == nil:
		return nil // volumes are looked at again when it is back
	}
	p.missed(name, false)
	switch todo {
	case guard:
		return p.finalizers(ctx, pv, append(slices.Clone(pv.Finalizers), volume.PVDeletionProtectionFinalizer))
	case unguard:
		return p.finalizers(ctx, pv, withoutOurs(pv))
	case discard:
		at, err := p.on(node.Name)
		if err != nil {
			return err
		}
		if at == nil {
			p.events.Eventf(pv, v1.EventTypeWarning, "VolumeFailedDelete", "node %s is not ready", node.Name)
			return nil // it is looked at again when it is
		}
		return p.discard(ctx, at, name)
	}
	return nil
}

// gonePatience is how long a node may be missed: one that was deleted by mistake registers again.
const gonePatience = time.Minute

// missed reports for how long the node of a volume has been missed.
func (p *Provisioner) missed(name string, is bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !is {
		delete(p.gone, name)
		return 0
	}
	since, ok := p.gone[name]
	if !ok {
		since = time.Now()
		p.gone[name] = since
	}
	return time.Since(since)
}

// abandon lets go of a volume that nobody wants any more and whose node has left the cluster: nobody can remove the directory.
func (p *Provisioner) abandon(ctx context.Context, pv *v1.PersistentVolume) error {
	where := hostIn(pv)
	there, err := p.nodeLister.List(labels.SelectorFromSet(labels.Set{v1.LabelHostname: where}))
	if err != nil {
		return err
	}
	if where == "" || len(there) > 0 {
		p.missed(pv.Name, false)
		return nil // the node makes no volumes now; it may again
	}
	if since := p.missed(pv.Name, true); since < gonePatience {
		p.volumes.AddAfter(pv.Name, gonePatience-since)
		return nil
	}
	last, err := p.condemned(ctx, pv.Name)
	if err != nil || last == nil {
		return err
	}
	if last.DeletionTimestamp == nil {
		p.events.Eventf(last, v1.EventTypeWarning, "VolumeLeftBehind", "node %s has left the cluster: what is on its disk (%s) stays there", where, pathOf(last))
	}
	return p.remove(ctx, last)
}

// hostIn is the label of the node that has a volume, as newVolume has written it; "" if somebody else has.
func hostIn(pv *v1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil || len(pv.Spec.NodeAffinity.Required.NodeSelectorTerms) != 1 {
		return ""
	}
	term := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0]
	if len(term.MatchFields) > 0 || len(term.MatchExpressions) != 1 {
		return ""
	}
	e := term.MatchExpressions[0]
	if e.Key != v1.LabelHostname || e.Operator != v1.NodeSelectorOpIn || len(e.Values) != 1 {
		return ""
	}
	return e.Values[0]
}

func pathOf(pv *v1.PersistentVolume) string {
	if pv.Spec.Local == nil {
		return ""
	}
	return pv.Spec.Local.Path
}

// discard removes the directory, the volume, and what keeps the volume until the directory is removed.
func (p *Provisioner) discard(ctx context.Context, at *place, name string) error {
	pv, err := p.condemned(ctx, name)
	if err != nil || pv == nil {
		return err
	}
	if pathOf(pv) != directory(at.disk, name) || !strings.HasPrefix(name, namePrefix) {
		// Which directory it is, the name says. What somebody else has made up is not ours to remove.
		p.events.Eventf(pv, v1.EventTypeWarning, "VolumeFailedDelete", "node %s did not make it: its path is not %s", at.node.Name, directory(at.disk, name))
		return nil
	}
	if err := at.disk.Remove(ctx, name); err != nil {
		if errors.Is(err, ErrUnfinished) || errors.Is(err, ErrInUse) && releasedSince(pv) < inUsePatience {
			return fmt.Errorf("%w: volume %s: %w", controller.ErrBehind, name, err)
		}
		if ctx.Err() == nil {
			p.events.Event(pv, v1.EventTypeWarning, "VolumeFailedDelete", err.Error())
		}
		return fmt.Errorf("remove the directory of volume %s: %w", name, err)
	}
	p.forget(at.node.Name)
	p.room.Add(roomKey(at.node.Name, pv.Spec.StorageClassName))
	return p.remove(ctx, pv)
}

// remove removes a volume whose directory is no concern any more.
func (p *Provisioner) remove(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv.DeletionTimestamp == nil {
		err := p.client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pv.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete volume %s: %w", pv.Name, err)
		}
		return nil // that it is being deleted brings it back here
	}
	if !slices.Contains(pv.Finalizers, volume.PVDeletionProtectionFinalizer) {
		return nil
	}
	return p.finalizers(ctx, pv, withoutOurs(pv))
}

// inUsePatience is how long a volume may be mounted after its claim is gone. A pod that has ended counts for claims no
// more, while its kubelet is still taking its volumes down.
const inUsePatience = 10 * time.Second

func releasedSince(pv *v1.PersistentVolume) time.Duration {
	if pv.Status.LastPhaseTransitionTime == nil {
		return inUsePatience
	}
	return time.Since(pv.Status.LastPhaseTransitionTime.Time)
}

// condemned returns the volume as the API server has it now, or nil if it is not to be removed after all: an informer may
// be behind, and what is removed does not come back.
func (p *Provisioner) condemned(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	pv, err := p.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at volume %s: %w", name, err)
	}
	if decide(pv) != discard || !ours(pv) {
		return nil, nil
	}
	if pv.Spec.ClaimRef == nil {
		return pv, nil
	}
	ref := pv.Spec.ClaimRef
	claim, err := p.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("look for the claim of volume %s: %w", name, err)
	}
	if err == nil && claim.UID == ref.UID {
		return nil, fmt.Errorf("volume %s is released, and its claim %s/%s is still there", name, ref.Namespace, ref.Name)
	}
	return pv, nil
}

func withoutOurs(pv *v1.PersistentVolume) []string {
	return slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == volume.PVDeletionProtectionFinalizer })
}

func (p *Provisioner) finalizers(ctx context.Context, pv *v1.PersistentVolume, want []string) error {
	next := pv.DeepCopy()
	next.Finalizers = want
	_, err := p.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the finalizers of volume %s: %w", pv.Name, err)
	}
	return nil
}
