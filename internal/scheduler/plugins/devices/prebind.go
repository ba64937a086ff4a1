package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
)

// Reserve promises to the open claims what Filter has found for them on the node.
func (d *Devices) Reserve(_ context.Context, cycle fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	s := stateOf(cycle)
	if s == nil {
		return nil
	}
	plan, ok := s.plans[node]
	if !ok && s.extended != nil {
		return fwk.AsStatus(fmt.Errorf("nobody has looked for devices on node %q", node))
	}
	if plan.need != nil {
		s.claims = append(s.claims, newSpecial(pod, plan.need))
	}
	found := plan.allocations
	if open := s.openClaims(); len(found) != len(open) && len(open) > 0 {
		return fwk.AsStatus(fmt.Errorf("claim allocation not found for node %q", node))
	}
	for _, c := range s.claims {
		if c.Status.Allocation != nil {
			continue
		}
		if c.open() {
			c.allocation, found = &found[0], found[1:]
		}
		with := c.DeepCopy()
		with.Status.Allocation = c.allocation
		d.claims.promise(with, pod.UID, cycleOf(cycle))
	}
	return nil
}

// Unreserve takes back the promises that were not written, and the pod's reservations, and deletes the claim that was
// made for it. Devices that were written to claims of its own stay with them: if the pod's next attempt goes elsewhere,
// PostFilter gives them up. So do claims that are reserved for the pod's group, since others of it may use them.
func (d *Devices) Unreserve(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod, _ string) {
	s := stateOf(cycle)
	if s == nil {
		return
	}
	if c := s.special(); c != nil {
		s.claims = s.claims[:len(s.claims)-1]
		d.unmake(ctx, c, pod)
	}
	for _, c := range s.claims {
		d.claims.withdraw(c.key, pod.UID)
		if !pods.ReservedFor(c.ResourceClaim, pod.UID) {
			continue
		}
		if _, err := d.update(ctx, c, d.leave(pod.UID)); err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err,
				"Cannot take back a pod's reservation; it has the claim until it is scheduled or gone", "claim", klog.KObj(c))
		}
	}
}

// PreBindPreFlight skips pods that need no devices.
func (*Devices) PreBindPreFlight(_ context.Context, cycle fwk.CycleState, _ *v1.Pod,
	_ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	result := &fwk.PreBindPreFlightResult{AllowParallel: true}
	if stateOf(cycle) == nil {
		return result, fwk.NewStatus(fwk.Skip)
	}
	return result, nil
}

// PreBind writes the allocations, reserves the claims for the pod, and waits until the devices are ready.
func (d *Devices) PreBind(ctx context.Context, cycle fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	s := stateOf(cycle)
	if s == nil {
		return nil
	}
	for _, c := range s.claims {
		if c.reservedFor(pod.UID) {
			continue
		}
		if !c.made() {
			if err := d.create(ctx, c); err != nil {
				return fwk.AsStatus(err)
			}
		}
		answer, err := d.reserve(ctx, c)
		if err != nil {
			return fwk.AsStatus(err)
		}
		c.ResourceClaim = answer // for Unreserve
	}
	if err := d.tell(ctx, s, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return d.awaitReady(ctx, s, pod, node)
}

// reserve writes the claim's allocation, if that is to be done, and who uses it.
func (d *Devices) reserve(ctx context.Context, c *podClaim) (*resourcev1.ResourceClaim, error) {
	answer, err := d.update(ctx, c, d.join(c))
	if err == nil {
		return answer, nil
	}
	// If only the answer was lost, the devices are the claim's, and must not be promised to another one.
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	now, lookErr := d.api(c.ResourceClaim).Get(look, c.Name, metav1.GetOptions{})
	if lookErr != nil || now.UID != c.UID || now.Status.Allocation == nil {
		return nil, err
	}
	d.claims.note(now, c.key)
	if pods.ReservedFor(now, c.user.UID) && same(now.Status.Allocation, c.decided()) {
		return now, nil
	}
	return nil, err
}

// change changes a copy of the claim's latest version, and returns the API server's answer.
type change func(context.Context, *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)

// update writes a change, based on the version that is known; and again, on the latest version, as long as somebody
// else is faster: each time another one of those who want to change the claim is done.
func (d *Devices) update(ctx context.Context, c *podClaim, write change) (*resourcev1.ResourceClaim, error) {
	var answer *resourcev1.ResourceClaim
	var last error
	claim := c.ResourceClaim
	latest := claim
	err := wait.ExponentialBackoffWithContext(ctx, patience, func(ctx context.Context) (bool, error) {
		if latest == nil {
			now, err := d.api(claim).Get(ctx, claim.Name, metav1.GetOptions{})
			if err != nil {
				return false, fmt.Errorf("get updated claim %s after conflict: %w", klog.KObj(claim), err)
			}
			if now.UID != claim.UID {
				return false, fmt.Errorf("claim %s got replaced in the meantime", klog.KObj(claim))
			}
			latest = now
		}
		answer, last = write(ctx, latest.DeepCopy())
		if apierrors.IsConflict(last) {
			latest = nil
			return false, nil
		}
		return true, last
	})
	if wait.Interrupted(err) {
		err = errors.Join(err, last)
	}
	if err != nil {
		return nil, err
	}
	d.claims.note(answer, c.key)
	return answer, nil
}

// patience is enough for all pods of a gang that share a claim.
var patience = wait.Backoff{Steps: 30, Duration: 5 * time.Millisecond, Factor: 1.3, Jitter: 1, Cap: time.Second}

func (d *Devices) api(claim *resourcev1.ResourceClaim) resourceclient.ResourceClaimInterface {
	return d.client.ResourceV1().ResourceClaims(claim.Namespace)
}

// join reserves the claim for the pod or its group, and allocates it if nobody has. It must have, or get, what was decided.
func (d *Devices) join(c *podClaim) change {
	return func(ctx context.Context, latest *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		switch has := latest.Status.Allocation; {
		case latest.DeletionTimestamp != nil:
			return nil, fmt.Errorf("claim %s got deleted in the meantime", klog.KObj(latest))
		case has == nil && c.Status.Allocation != nil:
			return nil, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", klog.KObj(latest))
		case has == nil:
			var err error
			if latest, err = d.protect(ctx, latest); err != nil {
				return nil, err
			}
			latest.Status.Allocation = c.allocation.DeepCopy()
			latest.Status.Allocation.AllocationTimestamp = new(metav1.Now())
		case !same(has, c.decided()):
			return nil, fmt.Errorf("claim %s got allocated elsewhere in the meantime", klog.KObj(latest))
		}
		if pods.ReservedFor(latest, c.user.UID) {
			return latest, nil
		}
		latest.Status.ReservedFor = append(latest.Status.ReservedFor, c.user)
		answer, err := d.api(latest).UpdateStatus(ctx, latest, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("add reservation to claim %s: %w", klog.KObj(latest), err)
		}
		return answer, nil
	}
}

// protect adds the finalizer that keeps a claim while it has devices.
func (d *Devices) protect(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		return claim, nil
	}
	claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
	answer, err := d.api(claim).Update(ctx, claim, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("add finalizer to claim %s: %w", klog.KObj(claim), err)
	}
	return answer.DeepCopy(), nil
}

// leave takes back a pod's reservation.
func (d *Devices) leave(pod types.UID) change {
	return func(ctx context.Context, latest *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		if !pods.ReservedFor(latest, pod) {
			return latest, nil
		}
		latest.Status.ReservedFor = slices.DeleteFunc(latest.Status.ReservedFor,
			func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod })
		return d.api(latest).UpdateStatus(ctx, latest, metav1.UpdateOptions{})
	}
}

// same reports whether two allocations are of the same devices. Either may be nil.
func same(a, b *resourcev1.AllocationResult) bool {
	if a == nil || b == nil {
		return a == b
	}
	return equality.Semantic.DeepEqual(a.Devices, b.Devices) &&
		equality.Semantic.DeepEqual(a.NodeSelector, b.NodeSelector)
}
