package resourceclaim

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
)

// over reports whether none of the pod's containers runs, and none will.
func over(pod *v1.Pod) bool {
	return pods.IsTerminal(pod.Status.Phase) || pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// settlement is what becomes of a claim.
type settlement struct {
	keeps []resourcev1.ResourceClaimConsumerReference // those for whom it stays reserved
	// frees says that the status changes: reservations go, or the devices, or both.
	frees, deallocate bool
	// unprotect says that nothing keeps the claim from being deleted any more.
	unprotect bool
	// remove says that the claim was made for a pod that is over.
	remove bool
}

// settle returns what becomes of a claim. gone reports whether a pod that uses it is over, or a pod group gone; ownerOver,
// whether the pod for which it was made is over.
//
// A claim loses its devices with its last user, so that its next one is not bound to the node of the previous one. A
// claim that nobody uses keeps them, because a user may be on its way, unless it is deleted.
func settle(its *resourcev1.ResourceClaim, gone map[resourcev1.ResourceClaimConsumerReference]bool,
	ownerOver bool) settlement {
	var s settlement
	for _, r := range its.Status.ReservedFor {
		if !gone[r] {
			s.keeps = append(s.keeps, r)
		}
	}
	if len(s.keeps) > 0 {
		s.frees = len(s.keeps) < len(its.Status.ReservedFor)
		return s
	}
	ends := len(its.Status.ReservedFor) > 0 || its.DeletionTimestamp != nil
	if protected := slices.Contains(its.Finalizers, resourcev1.Finalizer); protected && ends {
		s.deallocate = its.Status.Allocation != nil
		s.unprotect = true
	}
	s.frees = s.deallocate || len(its.Status.ReservedFor) > 0
	s.remove = ownerOver && its.DeletionTimestamp == nil
	return s
}

func (c *Controller) syncClaim(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	its, err := controller.Found(c.claimLister.ResourceClaims(namespace).Get(name))
	if its == nil {
		return err
	}
	gone := map[resourcev1.ResourceClaimConsumerReference]bool{}
	for _, r := range its.Status.ReservedFor {
		switch {
		case r.APIGroup == "" && r.Resource == "pods":
			gone[r], err = c.podGone(ctx, namespace, r)
		case r.APIGroup == schedulingv1beta1.GroupName && r.Resource == "podgroups":
			gone[r], err = c.groupGone(ctx, its, r)
		default: // whoever reserved it for something else knows when that is over
		}
		if err != nil {
			return err
		}
	}
	ownerOver := false
	if owner := podOf(its); owner != nil {
		// If the pod is gone, the garbage collector deletes the claim.
		pod, err := c.podLister.Pods(namespace).Get(owner.Name)
		ownerOver = err == nil && (pod.UID != owner.UID || over(pod))
	}
	err = c.release(ctx, its, settle(its, gone, ownerOver))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// podGone reports whether a pod that uses a claim is over.
func (c *Controller) podGone(ctx context.Context, namespace string,
	r resourcev1.ResourceClaimConsumerReference) (bool, error) {
	pod, err := known(ctx, r.Name, c.podLister.Pods(namespace), c.client.CoreV1().Pods(namespace))
	if err != nil {
		return false, fmt.Errorf("look for pod %s/%s, which uses a claim: %w", namespace, r.Name, err)
	}
	return pod == nil || pod.UID != r.UID || over(pod), nil
}

// known returns who uses a claim, nil if there is nobody of that name. If the informer does not know him, it may not know
// him yet, and the API server is asked: a claim must not be taken away from a pod that is just being scheduled.
func known[T any](ctx context.Context, name string, lister interface{ Get(name string) (*T, error) },
	api interface {
		Get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error)
	},
) (*T, error) {
	if user, err := controller.Found(lister.Get(name)); user != nil || err != nil {
		return user, err
	}
	return controller.Found(api.Get(ctx, name, metav1.GetOptions{}))
}

// release carries a settlement out. Each write fails if the claim has changed meanwhile, which has it settled anew.
func (c *Controller) release(ctx context.Context, its *resourcev1.ResourceClaim, s settlement) error {
	api := c.client.ResourceV1().ResourceClaims(its.Namespace)
	its = its.DeepCopy()
	if s.frees {
		its.Status.ReservedFor = s.keeps
		if s.deallocate {
			its.Status.Allocation, its.Status.Devices = nil, nil
		}
		answer, err := api.UpdateStatus(ctx, its, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("take back reservations of claim %s: %w", keyOf(its), err)
		}
		its = answer.DeepCopy()
		logOf(ctx, its).V(4).Info("Took back reservations of pods that are over", "left", len(s.keeps),
			"deallocated", s.deallocate)
	}
	if s.unprotect {
		its.Finalizers = slices.DeleteFunc(its.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		answer, err := api.Update(ctx, its, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("let go of claim %s: %w", keyOf(its), err)
		}
		its = answer
	}
	if !s.remove {
		return nil
	}
	same := &metav1.Preconditions{UID: &its.UID, ResourceVersion: &its.ResourceVersion}
	err := api.Delete(ctx, its.Name, metav1.DeleteOptions{Preconditions: same})
	if err != nil {
		return fmt.Errorf("delete claim %s of a pod that is over: %w", keyOf(its), err)
	}
	return nil
}
