package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"wherry.dev/internal/api/classes"
	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claimusers"
)

// syncClaim brings one claim to where it should be.
func (c *Controller) syncClaim(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	claim, err := controller.Found(c.claimLister.PersistentVolumeClaims(namespace).Get(name))
	if err != nil || claim == nil {
		return err
	}
	facts, err := c.claimFacts(claim)
	if err != nil {
		return err
	}
	plan, err := c.planClaim(ctx, facts)
	if err != nil {
		return fmt.Errorf("find a volume for claim %s: %w", key, err)
	}
	if err := c.carryOutClaim(ctx, claim, plan); errors.Is(err, controller.ErrBehind) || !apierrors.IsNotFound(err) {
		return err
	}
	return nil // the claim is gone
}

// planClaim returns a plan in which nobody else of this process is about to have the volume.
func (c *Controller) planClaim(ctx context.Context, f *claimFacts) (claimPlan, error) {
	c.promises.release(f.claim.UID) // of an attempt that has failed
	refused := false
	for {
		p, err := decideClaim(f)
		switch {
		case err != nil:
			return p, err
		case p.ask:
			if f.named, err = controller.Found(c.client.CoreV1().PersistentVolumes().Get(ctx, f.claim.Spec.VolumeName, metav1.GetOptions{})); err != nil {
				return p, err
			}
			f.sure = true
		case p.volume != nil && p.volume.Spec.ClaimRef == nil && !c.promises.take(p.volume, f.claim.UID):
			if p.volume == f.named {
				return p, fmt.Errorf("volume %s is promised: %w", p.volume.Name, controller.ErrBehind)
			}
			refused = true
			f.free = slices.DeleteFunc(f.free, func(pv *v1.PersistentVolume) bool { return pv == p.volume })
		case refused && p.volume == nil:
			return p, fmt.Errorf("all that fit are promised: %w", controller.ErrBehind)
		default:
			return p, nil
		}
	}
}

// claimFacts collects what decides about a claim, from the informers.
func (c *Controller) claimFacts(claim *v1.PersistentVolumeClaim) (*claimFacts, error) {
	f := &claimFacts{claim: claim}
	var err error
	switch {
	case claim.Spec.VolumeName != "":
		if f.named, err = controller.Found(c.volumeLister.Get(claim.Spec.VolumeName)); err != nil {
			return nil, err
		}
		f.holder, err = c.holder(claim.Spec.VolumeName, claim.UID)
		return f, err
	case done(claim):
		return f, nil
	}
	class := volume.GetPersistentVolumeClaimClass(claim)
	if f.class, err = controller.Found(c.classLister.Get(class)); err != nil {
		return nil, err
	}
	if !volume.PersistentVolumeClaimHasClass(claim) {
		all, err := c.classLister.List(labels.Everything())
		if err != nil {
			return nil, err
		}
		f.standard, _ = classes.Newest(slices.Values(all), classes.IsDefaultStorage)
	}
	whose := []string{ofClaim(keyOf(claim))}
	if f.late() {
		if f.waiting, err = c.users(keyOf(claim), waiting, func(p *v1.Pod) string { return p.Name }); err != nil {
			return nil, err
		}
	} else {
		whose = append(whose, ofClass(class))
	}
	f.free, err = controller.LookUp[*v1.PersistentVolume](c.volumeIndex, byClaim, whose...)
	return f, err
}

// holder returns a claim, other than one, that is bound to the volume; nil if there is none.
func (c *Controller) holder(pv string, except types.UID) (*v1.PersistentVolumeClaim, error) {
	claims, err := controller.LookUp[*v1.PersistentVolumeClaim](c.claimIndex, byWant, ofVolume(pv))
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if done(claim) && claim.UID != except {
			return claim, nil
		}
	}
	return nil, nil
}

// users returns what there is to say about pods that use the claim with the key, and are among those asked for.
func (c *Controller) users(claim string, among func(*v1.Pod) bool, say func(*v1.Pod) string) ([]string, error) {
	all, err := claimusers.Of(c.pods, claim)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range all {
		if among(p) {
			out = append(out, say(p))
		}
	}
	return out, nil
}

// syncVolume brings one volume to where it should be.
func (c *Controller) syncVolume(ctx context.Context, name string) error {
	pv, err := controller.Found(c.volumeLister.Get(name))
	if err != nil || pv == nil {
		return err
	}
	f, err := c.volumeFacts(pv)
	if err != nil {
		return err
	}
	p := decideVolume(f)
	if p.ask {
		ref := pv.Spec.ClaimRef
		if f.claim, err = controller.Found(c.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})); err != nil {
			return fmt.Errorf("look for the claim of volume %s: %w", name, err)
		}
		f.sure = true
		p = decideVolume(f)
	}
	if err := c.carryOutVolume(ctx, f, p); !apierrors.IsNotFound(err) {
		return err
	}
	return nil // the volume is gone
}

// volumeFacts collects what decides about a volume, from the informers.
func (c *Controller) volumeFacts(pv *v1.PersistentVolume) (*volumeFacts, error) {
	f := &volumeFacts{volume: pv}
	var err error
	if f.holder, err = c.holder(pv.Name, ""); err != nil || pv.Spec.ClaimRef == nil {
		return f, err
	}
	ref := pv.Spec.ClaimRef
	if f.claim, err = controller.Found(c.claimLister.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)); err != nil {
		return nil, err
	}
	if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle {
		active := func(p *v1.Pod) bool { return !pods.IsTerminal(p.Status.Phase) }
		f.users, err = c.users(refKey(ref), active, func(p *v1.Pod) string { return p.Namespace + "/" + p.Name })
	}
	return f, err
}
