package job

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
)

// podChanged looks at a pod that has the finalizer, but no job that could need it.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	is, _ := obj.(*v1.Pod)
	countTracked(was, is)
	if is != nil && isTracked(is) && c.isOrphan(is) {
		c.orphans.Add(keyOf(is))
	}
}

// countTracked keeps the metric of ended pods that have the finalizer.
func countTracked(was, is *v1.Pod) {
	holds := func(p *v1.Pod) bool { return p != nil && pods.IsTerminal(p.Status.Phase) && isTracked(p) }
	switch had, has := holds(was), holds(is); {
	case has && !had:
		trackedPods.WithLabelValues("add").Inc()
	case had && !has:
		trackedPods.WithLabelValues("delete").Inc()
	}
}

// orphansOf looks at the pods of a job that is gone or finished. A job finishes after its pods were
// released, which the informer of pods is about to tell: asking at once would be for nothing.
func (c *Controller) orphansOf(old, obj any) {
	j, ok := obj.(*batchv1.Job)
	wait := controller.Patience
	if ok && !isFinished(j) {
		return
	}
	if !ok {
		if j, ok = old.(*batchv1.Job); !ok {
			return
		}
		wait = 0
	}
	if old != nil && obj != nil && isFinished(old.(*batchv1.Job)) {
		return // they have been looked at
	}
	list, err := claim.Controlled[*v1.Pod](c.pods, j.UID)
	if err != nil {
		return // there is no such index: New would have failed
	}
	for _, p := range list {
		if isTracked(p) {
			c.orphans.AddAfter(keyOf(p), wait)
		}
	}
}

// isOrphan reports whether nobody known needs the finalizer of a pod. A pod of another controller is
// that one's business.
func (c *Controller) isOrphan(p *v1.Pod) bool {
	if metav1.GetControllerOfNoCopy(p) == nil {
		return true
	}
	ref := claim.ControllerOf(p, kind)
	if ref == nil {
		return false
	}
	item, exists, err := c.jobs.GetByKey(p.Namespace + "/" + ref.Name)
	if err != nil || !exists {
		return err == nil
	}
	return !needs(item.(*batchv1.Job), ref.UID)
}

// needs reports whether the job is the one with the UID, and its pods are still to be counted, here or
// by somebody else.
func needs(j *batchv1.Job, uid types.UID) bool {
	return j.UID == uid && (!isFinished(j) || externalManager(j) != "")
}

// syncOrphan removes the finalizer from a pod that no job needs. It asks the API server for the job:
// the informer may know the pod before its job.
func (c *Controller) syncOrphan(ctx context.Context, key string) error {
	item, exists, err := c.pods.GetByKey(key)
	if err != nil || !exists {
		return err
	}
	p := item.(*v1.Pod)
	if !isTracked(p) || !c.isOrphan(p) {
		return nil
	}
	if ref := claim.ControllerOf(p, kind); ref != nil {
		live, err := c.client.BatchV1().Jobs(p.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err == nil && needs(live, ref.UID) {
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	// The version keeps out a pod that somebody has adopted meanwhile.
	patch, err := releasePatch(map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion})
	if err != nil {
		return err
	}
	if _, err = c.patchPod(ctx, p, patch); isGone(err) {
		return nil
	}
	return err
}
