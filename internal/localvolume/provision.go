package localvolume

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/classes"
)

// asks reports whether a claim asks this provisioner, on whichever node, for a volume.
func asks(claim *v1.PersistentVolumeClaim) bool {
	return claim.Annotations[volume.AnnStorageProvisioner] == classes.LocalProvisioner
}

// waits reports whether the claim still has none.
func waits(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil
}

func className(claim *v1.PersistentVolumeClaim) string {
	return volume.GetPersistentVolumeClaimClass(claim)
}

// volumeName is that of the volume that is made for a claim, and of its directory: the one that external provisioners
// give theirs, too.
func volumeName(claim *v1.PersistentVolumeClaim) string { return namePrefix + string(claim.UID) }

const namePrefix = "pvc-"

// refusal says why no volume is made for a claim, or not as the claim wants it.
func refusal(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	s := &claim.Spec
	mode := ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate)
	shared := func(m v1.PersistentVolumeAccessMode) bool {
		return m == v1.ReadWriteMany || m == v1.ReadOnlyMany
	}
	switch {
	case mode != storagev1.VolumeBindingWaitForFirstConsumer:
		return fmt.Sprintf("storage class %q needs volumeBindingMode WaitForFirstConsumer: the volume is on the disk of the node of its first pod", class.Name)
	case len(class.Parameters) > 0:
		return fmt.Sprintf("storage class %q has parameters: %s knows none", class.Name, classes.LocalProvisioner)
	case slices.ContainsFunc(s.AccessModes, shared):
		return "the volume is on one node's disk: only the access modes ReadWriteOnce and ReadWriteOncePod are possible"
	case ptr.Deref(s.VolumeMode, v1.PersistentVolumeFilesystem) == v1.PersistentVolumeBlock:
		return "the volume is a directory: volumeMode Block is not possible"
	case s.Selector != nil:
		return "claim.spec.selector is not supported for dynamic provisioning"
	case s.DataSource != nil, s.DataSourceRef != nil:
		return "volumes cannot be made from snapshots or from other claims (spec.dataSource)"
	case ptr.Deref(s.VolumeAttributesClassName, "") != "":
		return "there are no attributes to choose from (spec.volumeAttributesClassName)"
	}
	return ""
}

// newVolume returns the volume for a claim.
func newVolume(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, directory, host string) *v1.PersistentVolume {
	policy := ptr.Deref(class.ReclaimPolicy, v1.PersistentVolumeReclaimDelete)
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: volumeName(claim), Annotations: map[string]string{volume.AnnDynamicallyProvisioned: classes.LocalProvisioner},
		},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: directory}},
			Capacity:               v1.ResourceList{v1.ResourceStorage: claim.Spec.Resources.Requests[v1.ResourceStorage]},
			AccessModes:            slices.Clone(claim.Spec.AccessModes), VolumeMode: new(v1.PersistentVolumeFilesystem),
			StorageClassName: class.Name, PersistentVolumeReclaimPolicy: policy, MountOptions: slices.Clone(class.MountOptions),
			ClaimRef: &v1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
				ResourceVersion: claim.ResourceVersion,
			},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{host}}},
			}}}},
		},
	}
	if policy == v1.PersistentVolumeReclaimDelete {
		pv.Finalizers = []string{volume.PVDeletionProtectionFinalizer}
	}
	return pv
}

// syncClaim makes the volume of a claim that waits for one.
func (p *Provisioner) syncClaim(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	claim, err := p.claimLister.PersistentVolumeClaims(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil || mine(claim) == "" {
		return p.giveUp(ctx, key, begun{})
	}
	if err := p.giveUp(ctx, key, begun{mine(claim), volumeName(claim)}); err != nil {
		return err
	}
	class, err := p.classLister.Get(className(claim))
	if apierrors.IsNotFound(err) || err == nil && class.Provisioner != classes.LocalProvisioner {
		return nil // it comes back when there is one
	}
	if err != nil {
		return err
	}
	at, err := p.on(mine(claim))
	if err != nil {
		return err
	}
	if at == nil { // the claim comes back with its node
		if p.offers(mine(claim)) {
			p.failed(claim, fmt.Sprintf("node %s is not ready", mine(claim)))
		}
		return nil
	}
	if why := refusal(claim, class); why != "" {
		p.failed(claim, why)
		return nil
	}
	if full, err := p.full(ctx, at, claim, class); err != nil || full {
		return err
	}
	return p.provision(ctx, at, claim, class)
}

// mine returns the node on which the volume of a claim is to be made; "" if none is, or it is there.
func mine(claim *v1.PersistentVolumeClaim) string {
	if !asks(claim) || !waits(claim) {
		return ""
	}
	return claim.Annotations[volume.AnnSelectedNode]
}

func (p *Provisioner) failed(claim *v1.PersistentVolumeClaim, why string) {
	p.events.Eventf(claim, v1.EventTypeWarning, "ProvisioningFailed", "failed to provision volume with StorageClass %q: %s", className(claim), why)
}

// full reports whether the disk has no room for a claim. The scheduler is told how much there is, and to choose again.
func (p *Provisioner) full(ctx context.Context, at *place, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (bool, error) {
	p.forget(at.node.Name)
	free, err := p.free(ctx, at)
	if err != nil {
		return false, err
	}
	want := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if want.Value() <= free {
		return false, nil
	}
	p.failed(claim, fmt.Sprintf("node %s has room for %s, and the claim asks for %s", at.node.Name, resource.NewQuantity(free, resource.BinarySI), want.String()))
	if err := p.syncRoom(ctx, roomKey(at.node.Name, class.Name)); err != nil {
		return false, err
	}
	again := claim.DeepCopy()
	delete(again.Annotations, volume.AnnSelectedNode)
	_, err = p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, again, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("give claim back to the scheduler: %w", err)
	}
	return true, nil
}

// provision makes the directory and the volume, each unless it is there.
func (p *Provisioner) provision(ctx context.Context, at *place, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	host, err := p.hostOf(at.node)
	if err != nil {
		p.failed(claim, err.Error())
		return err
	}
	pv := newVolume(claim, class, directory(at.disk, volumeName(claim)), host)
	size, key := pv.Spec.Capacity.Storage().Value(), cache.MetaObjectToName(claim).String()
	p.note(key, begun{at.node.Name, pv.Name})
	if err := at.disk.Make(ctx, pv.Name, size); err != nil {
		p.failed(claim, err.Error())
		return err
	}
	_, err = p.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err): // by an earlier try, or somebody else's
		if err := p.isFor(ctx, pv); err != nil {
			p.failed(claim, err.Error())
			return err
		}
	case err != nil:
		p.failed(claim, err.Error())
		return fmt.Errorf("write volume %s: %w", pv.Name, err)
	default:
		p.events.Eventf(claim, v1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s", pv.Name)
	}
	// Whoever tidied meanwhile may have seen the directory and no volume (tidy).
	if err := at.disk.Make(ctx, pv.Name, size); err != nil {
		return fmt.Errorf("look for the directory of volume %s: %w", pv.Name, err)
	}
	p.done(key)
	p.forget(at.node.Name)
	p.room.Add(roomKey(at.node.Name, class.Name))
	return nil
}

// isFor says why the volume of that name is not the one that was to be made.
func (p *Provisioner) isFor(ctx context.Context, pv *v1.PersistentVolume) error {
	have, err := p.client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look at volume %s: %w", pv.Name, err)
	}
	switch ref := have.Spec.ClaimRef; {
	case ref == nil || ref.UID != pv.Spec.ClaimRef.UID:
		return fmt.Errorf("there is a volume %s already, and it is not this claim's", pv.Name)
	case have.Spec.Local == nil || have.Spec.Local.Path != pv.Spec.Local.Path ||
		!equality.Semantic.DeepEqual(have.Spec.NodeAffinity, pv.Spec.NodeAffinity):
		return fmt.Errorf("there is a volume %s for the claim already, on another node or disk", pv.Name)
	}
	return nil
}

// directory returns where a volume is.
func directory(d Disk, volume string) string { return filepath.Join(d.Root(), volume) }
