package persistentvolume

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// volumeFacts are what decides about a volume.
type volumeFacts struct {
	volume *v1.PersistentVolume
	// claim has the name that the volume names; nil if there is none, or the volume names none.
	claim *v1.PersistentVolumeClaim
	// holder is a claim that was bound to the volume once, whatever the volume says; nil if there is none.
	holder *v1.PersistentVolumeClaim
	// sure says that claim comes from the API server, and not from an informer that may be behind.
	sure bool
	// users are the pods that use a claim of that name, with their namespaces.
	users []string
}

// volumePlan is what to do about a volume.
type volumePlan struct {
	// ask the API server about the claim, and decide again.
	ask bool
	// write is the volume with other metadata, or given up; nil leaves it.
	write *v1.PersistentVolume
	// phase that the volume has then, and a message for its status; "" leaves it.
	phase   v1.PersistentVolumePhase
	message string
	say     saying
	// tellClaim is said of the claim when say is news.
	tellClaim saying
	// wake is the key of a claim that is to be looked at.
	wake string
}

// decideVolume returns what to do about a volume, in the order of upstream's controller.
func decideVolume(f *volumeFacts) volumePlan {
	p := volumePlan{write: guarded(f.volume)}
	ref := f.volume.Spec.ClaimRef
	switch {
	case (ref == nil || ref.UID == "") && f.holder != nil:
		p.wake = keyOf(f.holder) // somebody has removed it from the volume; until it is back there, nobody else gets the volume
	case ref == nil, ref.UID == "": // free, or kept for a claim of that name
		p.phase = v1.VolumeAvailable
	case f.claim == nil, f.claim.UID != ref.UID:
		if !f.sure && !released(f.volume) {
			return volumePlan{ask: true}
		}
		f.reclaim(&p)
	case f.claim.Spec.VolumeName == "":
		f.unfinished(&p)
	case f.claim.Spec.VolumeName == f.volume.Name:
		p.phase = v1.VolumeBound
	case metav1.HasAnnotation(f.volume.ObjectMeta, volume.AnnDynamicallyProvisioned) &&
		f.volume.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete:
		f.reclaim(&p) // it was made for a claim that has got another one
	default:
		p.write, p.phase = givenUp(f.volume, p.write), v1.VolumeAvailable
	}
	return p
}

// released reports whether it was found before that the volume's claim is gone.
func released(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed
}

// unfinished is for a volume whose claim does not name it yet. The claim's loop completes that, or has a better one.
func (f *volumeFacts) unfinished(p *volumePlan) {
	if !volume.CheckVolumeModeMismatches(&f.claim.Spec, &f.volume.Spec) {
		p.wake = keyOf(f.claim)
		return
	}
	p.say = saying{v1.EventTypeWarning, "VolumeMismatch",
		fmt.Sprintf("Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.", f.claim.Name)}
	p.tellClaim = saying{v1.EventTypeWarning, "VolumeMismatch",
		fmt.Sprintf("Cannot bind PersistentVolume %q to requested PersistentVolumeClaim due to incompatible volumeMode.", f.volume.Name)}
}

// givenUp returns the volume without its claim, if it was the controller that gave it to that claim. If it was a user,
// it is still kept for a claim of that name.
func givenUp(pv, with *v1.PersistentVolume) *v1.PersistentVolume {
	if with == nil {
		with = pv.DeepCopy()
	}
	if !metav1.HasAnnotation(pv.ObjectMeta, volume.AnnBoundByController) {
		with.Spec.ClaimRef.UID = ""
		return with
	}
	with.Spec.ClaimRef = nil
	delete(with.Annotations, volume.AnnBoundByController)
	return with
}

// reclaim is for a volume that its claim does not need any more. One that has failed once stays so, for users to see.
func (f *volumeFacts) reclaim(p *volumePlan) {
	if !released(f.volume) {
		p.phase = v1.VolumeReleased
	}
	pv := f.volume
	if p.write != nil {
		pv = p.write
	}
	if pv.Annotations[volume.AnnMigratedTo] != "" {
		return // the driver does the rest
	}
	switch policy := pv.Spec.PersistentVolumeReclaimPolicy; policy {
	case v1.PersistentVolumeReclaimRetain:
	case v1.PersistentVolumeReclaimRecycle:
		// A claim that has the name now has another volume, and so have its pods.
		if len(f.users) > 0 && f.claim == nil {
			p.say = saying{v1.EventTypeNormal, "VolumeFailedRecycle", "Volume is used by pods: " + strings.Join(slices.Sorted(slices.Values(f.users)), ",")}
			return
		}
		f.fail(p, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
	case v1.PersistentVolumeReclaimDelete:
		if why := undeletable(pv); why != "" {
			f.fail(p, "VolumeFailedDelete", why)
		}
	default:
		f.fail(p, "VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
	}
}

func (f *volumeFacts) fail(p *volumePlan, reason, message string) {
	if f.volume.Status.Phase == v1.VolumeFailed {
		return
	}
	p.phase, p.message = v1.VolumeFailed, message
	p.say = saying{v1.EventTypeWarning, reason, message}
}

// inVolumePhase returns the volume in a phase; nil if it is already, or the phase is "". The API server writes when
// that was.
func inVolumePhase(pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) *v1.PersistentVolume {
	if phase == "" || pv.Status.Phase == phase {
		return nil
	}
	out := pv.DeepCopy()
	out.Status.Phase, out.Status.Message = phase, message
	return out
}
