package statefulset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/controller"
)

// carryOut takes the plan's steps and writes its status, also if a step failed: it tells of what was
// seen before.
func (c *Controller) carryOut(ctx context.Context, set *appsv1.StatefulSet, p plan) error {
	if p.recheck > 0 {
		c.loop.AddAfter(keyOf(set), p.recheck)
	}
	if len(p.ended) > 0 {
		c.backoff.GC()
	}
	for _, name := range p.ended {
		c.backoff.Next(backoffKey(set, name), c.backoff.Clock.Now())
	}
	var failure error
	for _, phase := range p.phases {
		if failure = c.takeAll(ctx, set, phase); failure != nil {
			break
		}
	}
	return errors.Join(failure, c.putStatus(ctx, set, p.status))
}

func backoffKey(set *appsv1.StatefulSet, pod string) string { return string(set.UID) + "/" + pod }

// waits returns after how long a pod that has ended may be replaced.
func (c *Controller) waits(set *appsv1.StatefulSet, pod string) time.Duration {
	key := backoffKey(set, pod)
	if !c.backoff.IsInBackOffSinceUpdate(key, c.backoff.Clock.Now()) {
		return 0
	}
	return c.backoff.Get(key)
}

// takeAll takes the steps of a phase: one after the other or, with Parallel, more and more at once.
func (c *Controller) takeAll(ctx context.Context, set *appsv1.StatefulSet, steps []step) error {
	if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		return controller.SlowStart(len(steps), func(i int) error { return c.take(ctx, set, steps[i]) })
	}
	for _, s := range steps {
		if err := c.take(ctx, set, s); err != nil {
			return err
		}
	}
	return nil
}

// take takes one step, and tells of it.
func (c *Controller) take(ctx context.Context, set *appsv1.StatefulSet, s step) error {
	for _, name := range s.conflicts {
		c.control.Events.Eventf(set, v1.EventTypeWarning, "ConflictingController",
			"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, "+
				"the retention policy is ignored for this claim", name)
	}
	verb, err := c.act(ctx, set, s)
	switch {
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return err
	case err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err):
		c.control.Events.Eventf(set, v1.EventTypeWarning, "Failed"+verb,
			"%s Pod %s in StatefulSet %s failed error: %s", verb, s.pod.Name, set.Name, err)
	case err == nil && verb != "":
		c.control.Events.Eventf(set, v1.EventTypeNormal, "Successful"+verb,
			"%s Pod %s in StatefulSet %s successful", verb, s.pod.Name, set.Name)
	}
	if err != nil {
		return fmt.Errorf("%s pod %s/%s: %w", strings.ToLower(verb), set.Namespace, s.pod.Name, err)
	}
	return nil
}

// act takes one step, and returns what it did to the pod, if anything.
func (c *Controller) act(ctx context.Context, set *appsv1.StatefulSet, s step) (verb string, err error) {
	key, api := keyOf(set), c.client.CoreV1().Pods(set.Namespace)
	var got *v1.Pod
	switch {
	case s.remove != nil:
		_, err := c.control.Remove(ctx, set, s.remove)
		return "Delete", err
	case s.create != nil:
		verb = "Create"
	default:
		verb = "Update"
	}
	if err := c.createClaims(ctx, set, s); err != nil {
		return verb, err
	}
	switch {
	case s.create != nil:
		got, err = api.Create(ctx, s.create, metav1.CreateOptions{})
	case s.update != nil:
		got, err = api.Update(ctx, s.update, metav1.UpdateOptions{})
	}
	if err != nil {
		return verb, err
	}
	if got != nil {
		c.control.Writes.Wrote(key, got)
	}
	if err := c.updateClaims(ctx, set, s); err != nil {
		return "Update", err
	}
	// That the claims of a pod that is to go belong to it now is nothing to tell of the pod.
	if ordinal, _ := ordinalOf(set, s.pod.Name); got == nil && (len(s.ownClaims) == 0 || !wanted(set, ordinal)) {
		verb = ""
	}
	return verb, nil
}

// createClaims creates the claims that a pod lacks.
func (c *Controller) createClaims(ctx context.Context, set *appsv1.StatefulSet, s step) error {
	errs := s.refused
	for _, pvc := range s.newClaims {
		got, err := c.client.CoreV1().PersistentVolumeClaims(set.Namespace).Create(ctx, pvc, metav1.CreateOptions{})
		switch {
		case err == nil:
			c.claimWrites.Wrote(keyOf(set), got)
			c.control.Events.Eventf(set, v1.EventTypeNormal, "SuccessfulCreate",
				"Create Claim %s Pod %s in StatefulSet %s success", pvc.Name, s.pod.Name, set.Name)
			continue
		case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
			return err
		case !apierrors.IsAlreadyExists(err):
			c.control.Events.Eventf(set, v1.EventTypeWarning, "FailedCreate",
				"Create Claim %s for Pod %s in StatefulSet %s failed error: %s", pvc.Name, s.pod.Name, set.Name, err)
		}
		errs = append(errs, fmt.Errorf("failed to create PVC %s: %w", pvc.Name, err))
	}
	return errors.Join(errs...)
}

// updateClaims writes the owners of claims.
func (c *Controller) updateClaims(ctx context.Context, set *appsv1.StatefulSet, s step) error {
	for _, pvc := range s.ownClaims {
		got, err := c.client.CoreV1().PersistentVolumeClaims(set.Namespace).Update(ctx, pvc, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", pvc.Name, err)
		}
		c.claimWrites.Wrote(keyOf(set), got)
	}
	return nil
}
