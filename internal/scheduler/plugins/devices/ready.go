package devices

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Some devices have to be got ready after they were allocated, as those that are attached to the node by a fabric. They
// name the conditions that their status in the claim must have before a pod is bound (KEP-5007).

var (
	errTimeout = errors.New("device binding timeout")
	errFailed  = errors.New("device binding failed")
)

// awaitReady waits until all devices are ready. It looks whenever one of the claims has changed.
func (d *Devices) awaitReady(ctx context.Context, s *state, pod *v1.Pod, node string) *fwk.Status {
	var keys []string
	drivers := sets.New[string]()
	for _, c := range s.claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			if len(r.BindingConditions) > 0 {
				drivers.Insert(r.Driver)
			}
		}
		keys = append(keys, keyOf(c.ResourceClaim))
	}
	if drivers.Len() == 0 {
		return nil
	}
	log := klog.FromContext(ctx)
	events := d.handle.EventRecorder().WithLogger(log)
	events.Eventf(pod, nil, v1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
		"waiting for binding conditions for device on node %s", node)
	began := time.Now()
	err := d.await(ctx, s, keys)
	observe(d.handle.ProfileName(), drivers, err, time.Since(began))
	return fwk.AsStatus(err)
}

func (d *Devices) await(ctx context.Context, s *state, keys []string) error {
	ctx, stop := context.WithTimeoutCause(ctx, d.bindingTimeout, errTimeout)
	defer stop()
	rung, forget := d.bells.Listen(keys...)
	defer forget()
	for {
		if done, err := d.allReady(s, time.Now()); done || err != nil {
			return err
		}
		select {
		case <-rung:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *Devices) allReady(s *state, now time.Time) (bool, error) {
	all := true
	for _, c := range s.claims {
		claim, err := d.claims.get(c.Namespace, c.Name)
		if err != nil {
			return false, err
		}
		is, err := ready(claim)
		switch {
		case err != nil:
			return false, err
		case !is && d.expired(claim, now):
			return false, fmt.Errorf("%w: claim=%s", errTimeout, claim.Name)
		case !is && claim.Status.Allocation == nil:
			return false, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", klog.KObj(claim))
		}
		all = all && is
	}
	return all, nil
}

// failed reports whether the claim's devices did not get ready, so that others should be tried.
func (d *Devices) failed(claim *resourcev1.ResourceClaim, now time.Time) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	is, err := ready(claim)
	return err != nil || !is && d.expired(claim, now)
}

// expired reports whether the claim's devices have had their time to get ready.
func (d *Devices) expired(claim *resourcev1.ResourceClaim, now time.Time) bool {
	a := claim.Status.Allocation
	return a != nil && a.AllocationTimestamp != nil && a.AllocationTimestamp.Add(d.bindingTimeout).Before(now)
}

// ready reports whether all devices of a claim are ready. An error says that one of them will not be.
func ready(claim *resourcev1.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		return false, nil
	}
	all := true
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		is := conditionsOf(claim, r)
		for _, name := range r.BindingFailureConditions {
			if c := meta.FindStatusCondition(is, name); c != nil && c.Status == metav1.ConditionTrue {
				return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", errFailed, claim.Name, c.Reason, c.Message)
			}
		}
		for _, name := range r.BindingConditions {
			all = all && meta.IsStatusConditionTrue(is, name)
		}
	}
	return all, nil
}

// conditionsOf returns the conditions of an allocated device.
func conditionsOf(claim *resourcev1.ResourceClaim, r *resourcev1.DeviceRequestAllocationResult) []metav1.Condition {
	for i := range claim.Status.Devices {
		if s := &claim.Status.Devices[i]; s.Driver == r.Driver && s.Pool == r.Pool && s.Device == r.Device {
			return s.Conditions
		}
	}
	return nil
}
