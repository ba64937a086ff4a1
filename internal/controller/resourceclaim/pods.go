package resourceclaim

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
)

// podPlan is what a pod's claims need.
type podPlan struct {
	making
	// reserve are allocated claims of a pod that has a node without their being reserved for it: somebody else than the
	// scheduler has bound it.
	reserve []reservation
}

// reservation is of a claim, for a pod or its group.
type reservation struct {
	*resourcev1.ResourceClaim
	user resourcev1.ResourceClaimConsumerReference
}

// around is what there is around a pod or a group.
type around struct {
	named func(string) *resourcev1.ResourceClaim      // a claim of the namespace by its name, or nil
	owned func(types.UID) []*resourcev1.ResourceClaim // the claims that were made for a pod or a group
}

// usable returns the claim of that name, or nil: there is none, or it is somebody else's, after the owner's own was
// deleted. check says whether it is. name may be nil.
func (a around) usable(name *string, check func(*resourcev1.ResourceClaim) error) *resourcev1.ResourceClaim {
	if name == nil {
		return nil
	}
	if its := a.named(*name); its != nil && check(its) == nil {
		return its
	}
	return nil
}

// plan returns what is to be done for a pod. group is its group; nil if it has none, and where there are no groups.
func plan(pod *v1.Pod, group *schedulingv1beta1.PodGroup, there around) podPlan {
	p := podPlan{making: making{names: map[string]string{}}}
	if pod.DeletionTimestamp != nil || pods.IsTerminal(pod.Status.Phase) {
		return p
	}
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, made, err := resourceclaim.Name(pod, ref)
		if err == nil && name == nil {
			continue // it turned out that none is needed
		}
		its := there.usable(name, func(its *resourcev1.ResourceClaim) error {
			if !made {
				return nil
			}
			return resourceclaim.IsForPod(pod, its, true)
		})
		user, err := resourceclaim.BindTo(pod, group, ref)
		if err != nil {
			continue // it names neither a claim nor a template
		}
		if ref.ResourceClaimTemplateName != nil {
			want := missing{ref.Name, *ref.ResourceClaimTemplateName, ptr.Deref(name, "")}
			its = p.find(want, its, there.owned(user.UID))
			if its == nil && user.UID == pod.UID { // that of a group is made for the group
				p.make = append(p.make, want)
			}
		}
		if its != nil && pod.Spec.NodeName != "" && its.Status.Allocation != nil && its.DeletionTimestamp == nil &&
			!pods.ReservedFor(its, pod.UID) && !pods.ReservedFor(its, user.UID) {
			p.reserve = append(p.reserve, reservation{its, user})
		}
	}
	return p
}

func (c *Controller) syncPod(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod, err := controller.Found(c.podLister.Pods(namespace).Get(name))
	if pod == nil {
		return err
	}
	group, known := c.groupOf(pod)
	if !known {
		return nil // whether its claims are the group's is not known before that; the group wakes the pod
	}
	p := plan(pod, group, c.around(namespace))
	errs := []error{c.carryOut(ctx, c.ofPod(pod), p.making)}
	for _, r := range p.reserve {
		errs = append(errs, c.reserve(ctx, pod, r))
	}
	return errors.Join(errs...)
}

func (c *Controller) around(namespace string) around {
	return around{
		named: func(name string) *resourcev1.ResourceClaim {
			its, err := c.claimLister.ResourceClaims(namespace).Get(name)
			if err != nil {
				return nil // a lister knows no other error than that there is none
			}
			return its
		},
		owned: func(uid types.UID) []*resourcev1.ResourceClaim {
			owned, err := claim.Controlled[*resourcev1.ResourceClaim](c.claimIndex, uid)
			if err != nil {
				return nil // the index exists
			}
			return owned
		},
	}
}

func (c *Controller) reserve(ctx context.Context, pod *v1.Pod, r reservation) error {
	its := r.DeepCopy()
	its.Status.ReservedFor = append(its.Status.ReservedFor, r.user)
	answer, err := c.client.ResourceV1().ResourceClaims(its.Namespace).UpdateStatus(ctx, its, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("reserve claim %s: %w", keyOf(its), err)
	}
	c.made.Wrote(keyOf(pod), answer)
	return nil
}
