package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
)

// claimRef is how a volume names a claim.
type claimRef struct {
	name string
	// own: the claim is the pod's own, of a generic ephemeral volume.
	own      bool
	readOnly bool
}

func claimOf(pod *v1.Pod, v *v1.Volume) (claimRef, bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return claimRef{name: v.PersistentVolumeClaim.ClaimName, readOnly: v.PersistentVolumeClaim.ReadOnly}, true
	case v.Ephemeral != nil:
		return claimRef{name: ephemeral.VolumeClaimName(pod, v), own: true}, true
	default:
		return claimRef{}, false
	}
}

// mountClaim sets up the volume that a claim is bound to.
//
//  1. If it is there already, it stays, whatever has become of the claim.
//  2. The claim and its volume are looked up, and must be each other's.
//  3. The node has to be one that may have the volume.
//  4. The record is written, unless another pod has the volume to itself.
//  5. The volume's kind sets it up.
func (m *Mounter) mountClaim(ctx context.Context, pod *v1.Pod, v *v1.Volume, ref claimRef) (refreshAt time.Time, err error) {
	if renews, there, err := m.standing(pod.UID, v.Name); err != nil || there {
		if renews { // what it wants may take its time, for which the pod need not wait
			refreshAt = time.Now()
		}
		return refreshAt, err
	}
	s, claim, err := m.resolve(ctx, pod, v, ref)
	if err != nil {
		return refreshAt, unprocessed(v.Name, err)
	}
	s.claim = claim
	k := m.kindOf(s)
	if k == nil {
		return refreshAt, failed(s, unsupported(s))
	}
	if err := volume.CheckNodeAffinity(s.pv, m.NodeLabels()); err != nil {
		return refreshAt, failed(s, &failedAt{"MountVolume.NodeAffinity check failed", err})
	}
	path := k.path(s, m.place(k, s))
	err = m.calls.alone(ctx, ofVolume, s.pv.Name, func() error { return m.take(s, k, path) })
	if err != nil {
		return refreshAt, failed(s, err)
	}
	// The pod may have the volume under two names.
	err = m.calls.alone(ctx, pod.UID, claimOnce(s.pv.Name), func() error {
		if there, err := k.ready(path); err != nil || there {
			return err
		}
		refreshAt, err = k.setUp(ctx, s, path)
		return err
	})
	return refreshAt, failed(s, err)
}

// claimOnce stands, among the volumes of a pod, for a PersistentVolume that it may have under several names.
func claimOnce(pv string) string { return "//" + pv }

// renewClaim looks after the volume of a claim that was set up. Its mount may not be visible: there are drivers that make
// none, and for one that was lost its driver knows best.
func (m *Mounter) renewClaim(ctx context.Context, pod *v1.Pod, v *v1.Volume, ref claimRef) (refreshAt time.Time, err error) {
	if renews, _, err := m.standing(pod.UID, v.Name); err != nil || !renews {
		return refreshAt, err
	}
	s, err := m.held(ctx, pod, v, ref)
	if err != nil || s == nil {
		return refreshAt, unprocessed(v.Name, err)
	}
	k := m.kindOf(s)
	err = m.calls.alone(ctx, pod.UID, claimOnce(s.pv.Name), func() (err error) {
		refreshAt, err = m.renewBy(ctx, k, s)
		return err
	})
	return refreshAt, err
}

// ofVolume stands for a pod's UID where a PersistentVolume is meant, whichever pod has it.
const ofVolume types.UID = "volume"

// held is resolve for a volume that the pod has, whatever has become of the claim; nil if there is nothing left to ask.
func (m *Mounter) held(ctx context.Context, pod *v1.Pod, v *v1.Volume, ref claimRef) (*spec, error) {
	b, err := readBound(m.Dirs, pod.UID, v.Name)
	if err != nil {
		return nil, err
	}
	claim, err := m.Objects(ctx).Claim(pod.Namespace, ref.name)
	if err != nil || claim.UID != b.ClaimUID {
		return nil, ignoreNotFound(err)
	}
	pv, err := m.Volume(ctx, b.Volume)
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	return &spec{pod: pod, name: v.Name, own: &v.VolumeSource, pv: pv, claim: claim, readOnly: ref.readOnly, block: b.Block}, nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// standing reports whether the volume of a claim is set up, and whether it is one that wants to be renewed.
func (m *Mounter) standing(uid types.UID, name string) (renews, there bool, err error) {
	all, err := boundOf(m.Dirs, uid)
	if err != nil {
		return false, false, err
	}
	b, ok := all[name]
	if !ok {
		return false, false, nil
	}
	for _, k := range m.kinds() {
		if k.folder() == b.Folder {
			_, renews = k.(renewer)
			there, err = k.ready(b.Path)
			return renews, there, err
		}
	}
	return false, false, nil // of a kind that another release had
}

// take writes down that the pod has a volume, unless another pod has it to itself.
func (m *Mounter) take(s *spec, k kind, path string) error {
	if slices.Contains(s.pv.Spec.AccessModes, v1.ReadWriteOncePod) {
		others, err := m.others(s.pod.UID, s.pv.Name)
		if err != nil {
			return err
		}
		if len(others) > 0 {
			m.waitFor(s.pv.Name, s.pod.UID)
			return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
		}
	}
	return writeBound(m.Dirs, s.pod.UID, s.name, bound{
		Volume: s.pv.Name, Claim: s.claim.Name, ClaimUID: s.claim.UID, location: location{path, s.readOnly, s.block}, Folder: k.folder(),
		Size: s.pv.Spec.Capacity.Storage().Value(),
	})
}

// resolve finds out which volume a claim is bound to.
func (m *Mounter) resolve(ctx context.Context, pod *v1.Pod, v *v1.Volume, ref claimRef) (*spec, *v1.PersistentVolumeClaim, error) {
	about := func(err error) error {
		return fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, ref.name, err)
	}
	claim, err := m.Objects(ctx).Claim(pod.Namespace, ref.name)
	if err != nil {
		return nil, nil, about(fmt.Errorf("failed to fetch PVC from API server: %w", err))
	}
	if err := usable(pod, claim, ref); err != nil {
		return nil, nil, about(err)
	}
	if m.Volume == nil {
		return nil, nil, about(errors.New("no API server is configured"))
	}
	pv, err := m.Volume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return nil, nil, about(fmt.Errorf("failed to fetch PV %s from API server: %w", claim.Spec.VolumeName, err))
	}
	if err := eachOthers(claim, pv); err != nil {
		return nil, nil, about(err)
	}
	s := &spec{pod: pod, name: v.Name, own: &v.VolumeSource, pv: pv, readOnly: ref.readOnly}
	s.block = modeOf(pv) == v1.PersistentVolumeBlock
	s.readOnly = s.readOnly || pv.Spec.ISCSI != nil && pv.Spec.ISCSI.ReadOnly || pv.Spec.FC != nil && pv.Spec.FC.ReadOnly
	return s, claim, usedAs(pod, v.Name, modeOf(pv))
}

// usable says why a pod cannot have a claim, or cannot have it yet.
func usable(pod *v1.Pod, claim *v1.PersistentVolumeClaim, ref claimRef) error {
	if ref.own {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return err
		}
	}
	switch {
	case claim.DeletionTimestamp != nil:
		return errors.New("PVC is being deleted")
	case claim.Status.Phase != v1.ClaimBound:
		return errors.New("PVC is not bound")
	case claim.Spec.VolumeName == "":
		return errors.New("PVC has empty pvc.Spec.VolumeName")
	}
	return nil
}

// eachOthers says why a volume is not that of the claim which names it. The claim may be older than the volume, or a
// newer one of the same name.
func eachOthers(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	owner := pv.Spec.ClaimRef
	switch {
	case pv.Name != claim.Spec.VolumeName:
		return fmt.Errorf("asked for PV object %s and got %s", claim.Spec.VolumeName, pv.Name)
	case owner == nil:
		return fmt.Errorf("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", pv.Name)
	case owner.UID != claim.UID:
		return fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", pv.Name, owner.UID, claim.UID)
	}
	return nil
}

func modeOf(pv *v1.PersistentVolume) v1.PersistentVolumeMode {
	return ptr.Deref(pv.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
}

// usedAs says why containers cannot use a volume of this mode in the way that they name it.
func usedAs(pod *v1.Pod, name string, mode v1.PersistentVolumeMode) error {
	for c := range pods.AllContainers(&pod.Spec) {
		mounted := slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == name })
		if mounted && mode != v1.PersistentVolumeFilesystem {
			return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", name, mode)
		}
		device := slices.ContainsFunc(c.VolumeDevices, func(d v1.VolumeDevice) bool { return d.Name == name })
		if device && mode != v1.PersistentVolumeBlock {
			return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", name, mode)
		}
	}
	return nil
}
