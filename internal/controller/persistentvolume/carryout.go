package persistentvolume

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
)

// carryOutClaim writes what a plan for a claim says, the volume before the claim, and what it is before what state it
// is in. Each write fails if its object has changed meanwhile, which has the claim decided about anew.
func (c *Controller) carryOutClaim(ctx context.Context, claim *v1.PersistentVolumeClaim, p claimPlan) error {
	key, write, pv := keyOf(claim), p.write, p.volume
	if pv != nil {
		var err error
		switch pv, err = c.bindVolume(ctx, claim, pv); {
		case apierrors.IsNotFound(err): // the claim is to have another one as soon as the informer knows
			return fmt.Errorf("%w: %w", controller.ErrBehind, err)
		case apierrors.IsConflict(err): // the informer is about to have another version, which ends the promise
			return err
		case err != nil:
			c.promises.release(claim.UID)
			return err
		}
		write = boundTo(claim, write, pv)
	}
	if write != nil {
		answer, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, write, metav1.UpdateOptions{})
		if p.retroactive {
			countRetroactive(err)
		}
		if err != nil {
			return fmt.Errorf("write claim %s: %w", key, err)
		}
		c.wroteClaims.Wrote(key, answer)
		claim = answer
	}
	if p.phase == "" {
		return nil
	}
	if next := inPhase(claim, p.phase, pv); next != nil {
		answer, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("write the status of claim %s: %w", key, err)
		}
		c.wroteClaims.Wrote(key, answer)
		klog.FromContext(ctx).V(2).Info("Claim entered phase", "claim", key, "phase", p.phase, "volume", answer.Spec.VolumeName)
	}
	c.tell(claim, p.say)
	return nil
}

// bindVolume gives the volume to the claim, unless it has it.
func (c *Controller) bindVolume(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	next, changed, err := volume.GetBindVolumeToClaim(pv, claim)
	if err != nil {
		return nil, err
	}
	owner := keyOf(claim)
	if changed {
		if pv, err = c.writeVolume(ctx, owner, next); err != nil {
			return nil, err
		}
	}
	return c.writePhase(ctx, owner, pv, v1.VolumeBound, "")
}

func (c *Controller) writeVolume(ctx context.Context, owner string, next *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	answer, err := c.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write volume %s: %w", next.Name, err)
	}
	c.wroteVolumes.Wrote(owner, answer)
	return answer, nil
}

// writePhase writes the phase of a volume, if it has another one.
func (c *Controller) writePhase(ctx context.Context, owner string, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) (*v1.PersistentVolume, error) {
	next := inVolumePhase(pv, phase, message)
	if next == nil {
		return pv, nil
	}
	answer, err := c.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write the status of volume %s: %w", pv.Name, err)
	}
	c.wroteVolumes.Wrote(owner, answer)
	klog.FromContext(ctx).V(2).Info("Volume entered phase", "volume", pv.Name, "phase", phase)
	return answer, nil
}

// carryOutVolume writes what a plan for a volume says.
func (c *Controller) carryOutVolume(ctx context.Context, f *volumeFacts, p volumePlan) error {
	pv := f.volume
	var err error
	if p.write != nil {
		if pv, err = c.writeVolume(ctx, pv.Name, p.write); err != nil {
			return err
		}
	}
	if pv, err = c.writePhase(ctx, pv.Name, pv, p.phase, p.message); err != nil {
		return err
	}
	if c.tell(pv, p.say) && p.tellClaim.reason != "" {
		c.events.Event(f.claim, p.tellClaim.kind, p.tellClaim.reason, p.tellClaim.message)
	}
	if p.wake != "" {
		c.claims.Add(p.wake)
	}
	return nil
}

// tell records an event, unless it was the last that was said of the object, and reports whether it was news.
func (c *Controller) tell(obj interface {
	runtime.Object
	metav1.Object
}, s saying) bool {
	if s.reason == "" {
		c.said.forget(obj)
		return false
	}
	if !c.said.news(obj, s) {
		return false
	}
	c.events.Event(obj, s.kind, s.reason, s.message)
	return true
}
