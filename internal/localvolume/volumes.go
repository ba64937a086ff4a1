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
	here, err := p.here(pv)
	if err != nil || !here {
		return err
	}
	switch decide(pv) {
	case guard:
		return p.finalizers(ctx, pv, append(slices.Clone(pv.Finalizers), volume.PVDeletionProtectionFinalizer))
	case unguard:
		return p.finalizers(ctx, pv, withoutOurs(pv))
	case discard:
		return p.discard(ctx, name)
	}
	return nil
}

// here reports whether a volume is one of this node's.
func (p *Provisioner) here(pv *v1.PersistentVolume) (bool, error) {
	node, err := p.nodeLister.Get(p.Node)
	if apierrors.IsNotFound(err) {
		return false, nil // volumes are looked at again when it is back
	}
	if err != nil {
		return false, err
	}
	return pv.Spec.NodeAffinity != nil && volume.CheckNodeAffinity(pv, node.Labels) == nil, nil
}

// nodeChanged looks at everything again when this node appears, or has other labels.
func (p *Provisioner) nodeChanged(old, obj any) {
	node, ok := obj.(*v1.Node)
	if !ok || node.Name != p.Node {
		return
	}
	if was, ok := old.(*v1.Node); ok && was.UID == node.UID && was.Labels[v1.LabelHostname] == node.Labels[v1.LabelHostname] {
		return
	}
	p.lookAgain()
}

// discard removes the directory, the volume, and what keeps the volume until the directory is removed.
func (p *Provisioner) discard(ctx context.Context, name string) error {
	pv, err := p.condemned(ctx, name)
	if err != nil || pv == nil {
		return err
	}
	if local := pv.Spec.Local; local == nil || local.Path != p.directory(name) || !strings.HasPrefix(name, namePrefix) {
		// Which directory it is, the name says. What somebody else has made up is not ours to remove.
		p.events.Eventf(pv, v1.EventTypeWarning, "VolumeFailedDelete", "node %s did not make it: its path is not %s", p.Node, p.directory(name))
		return nil
	}
	if err := p.removeDirectory(ctx, name); err != nil {
		if errors.Is(err, errInUse) && releasedSince(pv) < inUsePatience {
			return fmt.Errorf("%w: volume %s: %w", controller.ErrBehind, name, err)
		}
		if ctx.Err() == nil {
			p.events.Event(pv, v1.EventTypeWarning, "VolumeFailedDelete", err.Error())
		}
		return fmt.Errorf("remove the directory of volume %s: %w", name, err)
	}
	p.room.Add(pv.Spec.StorageClassName)
	if pv.DeletionTimestamp == nil {
		err := p.client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pv.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete volume %s: %w", name, err)
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
	if here, err := p.here(pv); err != nil || !here || decide(pv) != discard {
		return nil, err
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
