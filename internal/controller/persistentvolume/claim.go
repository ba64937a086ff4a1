package persistentvolume

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// claimFacts are what decides about a claim.
type claimFacts struct {
	claim *v1.PersistentVolumeClaim
	// class is the one that the claim names; nil if it names none, or there is none of that name.
	class *storagev1.StorageClass
	// standard is the default class; nil if there is none.
	standard *storagev1.StorageClass
	// named is the volume that the claim names; nil if it names none, or there is none of that name.
	named *v1.PersistentVolume
	// holder is another claim that is bound to that volume, whatever the volume says; nil if there is none.
	holder *v1.PersistentVolumeClaim
	// sure says that named comes from the API server, and not from an informer that may be behind.
	sure bool
	// free are volumes that the claim might get.
	free []*v1.PersistentVolume
	// waiting are the names of pods that use the claim and have no node.
	waiting []string
}

// claimPlan is what to do about a claim.
type claimPlan struct {
	// ask the API server about the volume that the claim names, and decide again.
	ask bool
	// volume is bound to the claim, which is bound to it then; nil leaves the claim without one.
	volume *v1.PersistentVolume
	// write is the claim with other metadata, or with the default class; nil leaves it.
	write *v1.PersistentVolumeClaim
	// retroactive says that write gives the claim the default class. The new state decides about the rest.
	retroactive bool
	// phase that the claim has then; "" leaves its status.
	phase v1.PersistentVolumeClaimPhase
	say   saying
}

// saying is an event.
type saying struct{ kind, reason, message string }

// decideClaim returns what to do about a claim, in the order of upstream's controller.
func decideClaim(f *claimFacts) (claimPlan, error) {
	if metav1.HasAnnotation(f.claim.ObjectMeta, volume.AnnBindCompleted) {
		return f.wasBound(), nil
	}
	if f.claim.DeletionTimestamp != nil {
		return claimPlan{}, nil // no pod can start with it any more
	}
	var p claimPlan
	if f.claim.Spec.VolumeName != "" {
		p = f.bindNamed()
	} else {
		pv, err := choose(f.claim, f.free, f.late())
		if err != nil {
			return p, err
		}
		if p = (claimPlan{volume: pv, phase: v1.ClaimBound}); pv == nil {
			p = f.noVolume()
		}
	}
	if p.write == nil {
		p.write = annotated(f.claim, "")
	}
	return p, nil
}

// late reports whether the claim is bound when the scheduler has found a node for its first pod.
func (f *claimFacts) late() bool {
	return f.class != nil && f.class.VolumeBindingMode != nil && *f.class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// wasBound is for a claim that was bound once. What has become of its volume decides whether it still is. A volume from
// which somebody has removed the claim, or the claim's UID, is given to it again; upstream's controller calls a claim
// lost if only the UID is missing.
func (f *claimFacts) wasBound() claimPlan {
	lost := func(reason, message string) claimPlan {
		switch {
		case f.claim.Status.Phase == v1.ClaimLost:
			return claimPlan{}
		case !f.sure:
			return claimPlan{ask: true}
		}
		return claimPlan{phase: v1.ClaimLost, say: saying{v1.EventTypeWarning, reason, message}}
	}
	switch {
	case f.claim.Spec.VolumeName == "":
		f.sure = true // the claim itself says so
		return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	case f.named == nil:
		return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case f.named.Spec.ClaimRef != nil && !volume.IsVolumeBoundToClaim(f.named, f.claim):
		return lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	return claimPlan{volume: f.named, phase: v1.ClaimBound, write: annotated(f.claim, "")}
}

// bindNamed is for a claim that wants one certain volume.
func (f *claimFacts) bindNamed() claimPlan {
	p := claimPlan{phase: v1.ClaimPending}
	pv := f.named
	if pv == nil {
		return p // it may come
	}
	if f.holder != nil || pv.Spec.ClaimRef != nil && !volume.IsVolumeBoundToClaim(pv, f.claim) {
		p.say = saying{v1.EventTypeWarning, "FailedBinding", fmt.Sprintf("volume %q already bound to a different claim.", pv.Name)}
		return p
	}
	if pv.Spec.ClaimRef == nil {
		if why := misfit(pv, f.claim); why != "" {
			p.say = saying{v1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf("Cannot bind to requested volume %q: %s", pv.Name, why)}
			return p
		}
	}
	return claimPlan{volume: pv, phase: v1.ClaimBound}
}

// noVolume is for a claim that no volume fits.
func (f *claimFacts) noVolume() claimPlan {
	p := claimPlan{phase: v1.ClaimPending}
	class := volume.GetPersistentVolumeClaimClass(f.claim)
	switch {
	case !volume.PersistentVolumeClaimHasClass(f.claim) && f.standard != nil:
		p.write = f.claim.DeepCopy()
		p.write.Spec.StorageClassName = &f.standard.Name
		return claimPlan{write: p.write, retroactive: true}
	case f.late() && !volume.IsDelayBindingProvisioning(f.claim):
		p.say = f.waits()
	case class == "":
		p.say = saying{v1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set"}
	case f.class == nil:
		p.say = saying{v1.EventTypeWarning, "ProvisioningFailed", fmt.Sprintf("storageclass.storage.k8s.io %q not found", class)}
	default:
		maker, why := provisioner(f.class)
		if why != "" {
			p.say = saying{v1.EventTypeWarning, "ProvisioningFailed", why}
			break
		}
		p.write = annotated(f.claim, maker)
		p.say = saying{v1.EventTypeNormal, "ExternalProvisioning", fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
			"or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", maker)}
	}
	return p
}

// waits says what a claim waits for whose pod decides where its volume is.
func (f *claimFacts) waits() saying {
	names := slices.Sorted(slices.Values(f.waiting))
	switch len(names) {
	case 0:
		return saying{v1.EventTypeNormal, "WaitForFirstConsumer", "waiting for first consumer to be created before binding"}
	case 1:
		return saying{v1.EventTypeNormal, "WaitForPodScheduled", "waiting for pod " + names[0] + " to be scheduled"}
	}
	return saying{v1.EventTypeNormal, "WaitForPodScheduled", "waiting for pods " + strings.Join(names, ",") + " to be scheduled"}
}
