package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
)

// carryOut deletes and creates what a plan says. It goes on after an error as far as it can; the
// outcome tells how far that was.
func (c *Controller) carryOut(ctx context.Context, f *census, p plan) (outcome, error) {
	key, ending := keyOf(f.job), p.verdict != nil
	var removed, ready, created, tried atomic.Int32
	removeErr := controller.Together(len(p.remove), func(i int) error {
		pod, take := p.remove[i], c.withdraw
		if ending {
			take = c.remove
		}
		if gone, err := take(ctx, f.job, pod); !gone {
			return err
		}
		removed.Add(1)
		if _, is := pods.ReadySince(pod); is {
			ready.Add(1)
		}
		return nil
	})
	createErr := controller.SlowStart(len(p.create), func(i int) error {
		tried.Add(1)
		err := c.create(ctx, f.job, podFor(f.job, p.create[i]))
		if err == nil {
			created.Add(1)
		}
		return ignoreEndOfNamespace(err)
	})
	addTo(createdPods, int(created.Load()), creationReason(f), "succeeded")
	addTo(createdPods, int(tried.Load()-created.Load()), creationReason(f), "failed")
	trackErr := controller.Together(len(p.track), func(i int) error { return c.track(ctx, key, p.track[i]) })
	return outcome{
		created: created.Load(), removed: removed.Load(), removedReady: ready.Load(),
		incomplete: ending && int(removed.Load()) < len(f.active),
	}, errors.Join(removeErr, createErr, trackErr)
}

// ignoreEndOfNamespace drops the error of a creation in a namespace that is being deleted: nothing can
// be created there, and nothing has to be.
func ignoreEndOfNamespace(err error) error {
	if apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

func (c *Controller) create(ctx context.Context, j *batchv1.Job, pod *v1.Pod) error {
	got, err := c.client.CoreV1().Pods(j.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return err
	case err != nil:
		if isUnclear(err) {
			c.doubt(keyOf(j))
		}
		c.events.Eventf(j, v1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		return err
	}
	c.podWrites.Wrote(keyOf(j), got)
	c.events.Eventf(j, v1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", got.Name)
	return nil
}

// isUnclear reports whether a request that failed may have had its effect nevertheless.
func isUnclear(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonInternalError:
		return true
	}
	return false
}

func (c *Controller) doubt(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubts[key] = true
}

// removeDoubt waits for pods which the API server may have created without our being told. It asks
// the API server itself: the informer would tell some time, but not when there is nothing to tell.
func (c *Controller) removeDoubt(ctx context.Context, j *batchv1.Job) error {
	c.mu.Lock()
	doubted := c.doubts[keyOf(j)]
	c.mu.Unlock()
	if !doubted {
		return nil
	}
	which := metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(j.Spec.Selector)}
	list, err := c.client.CoreV1().Pods(j.Namespace).List(ctx, which)
	if err != nil {
		return fmt.Errorf("look for pods of job %s/%s: %w", j.Namespace, j.Name, err)
	}
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], j) {
			c.podWrites.Wrote(keyOf(j), &list.Items[i])
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.doubts, keyOf(j))
	return nil
}

// remove deletes one pod. One that is gone is just what was wanted. A conflict is an error, which a Loop
// retries in silence, ever more seldom: there is another pod of its name, which the informer will tell,
// or a webhook does not want the deletion now.
func (c *Controller) remove(ctx context.Context, j *batchv1.Job, p *v1.Pod) (gone bool, err error) {
	err = c.deletePod(ctx, j, p, metav1.Preconditions{UID: &p.UID})
	return err == nil, err
}

// withdraw deletes an active pod whose end is not to count: its finalizer goes first. If the pod has
// changed since the plan was made, it may have ended, and then it counts: it stays as it is, and the
// next plan is made with what it is now. If we are killed between the two writes, the mark tells the
// next life that nobody has counted this pod.
func (c *Controller) withdraw(ctx context.Context, j *batchv1.Job, p *v1.Pod) (gone bool, err error) {
	version := p.ResourceVersion
	if isTracked(p) {
		patch, err := releasePatch(map[string]any{
			"uid": p.UID, "resourceVersion": version, "annotations": map[string]any{withdrawn: p.UID},
		})
		if err != nil {
			return false, err
		}
		switch got, err := c.patchPod(ctx, p, patch); {
		case isGone(err):
			return false, nil // the informer will tell, and wake the job
		case err != nil:
			return false, fmt.Errorf("removing tracking finalizer of pod %s/%s: %w", p.Namespace, p.Name, err)
		default:
			version = got.ResourceVersion
		}
		c.podWrites.Freed(keyOf(j), p, finalizer)
	}
	err = c.deletePod(ctx, j, p, metav1.Preconditions{UID: &p.UID, ResourceVersion: &version})
	return err == nil, err
}

// deletePod deletes the pod that meets the preconditions; with none, it fails with a conflict.
func (c *Controller) deletePod(ctx context.Context, j *batchv1.Job, p *v1.Pod, it metav1.Preconditions) error {
	err := c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &it})
	switch {
	case apierrors.IsConflict(err):
		return err
	case apierrors.IsNotFound(err):
		c.podWrites.Deleted(keyOf(j), p)
		return nil
	case err != nil:
		c.events.Eventf(j, v1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	c.podWrites.Deleted(keyOf(j), p)
	c.events.Eventf(j, v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
	return nil
}

// patch applies a strategic merge patch to a pod, on behalf of the job with the key.
func (c *Controller) patch(ctx context.Context, key string, p *v1.Pod, patch []byte) error {
	got, err := c.patchPod(ctx, p, patch)
	if err == nil {
		c.podWrites.Wrote(key, got)
	}
	return err
}

func (c *Controller) patchPod(ctx context.Context, p *v1.Pod, patch []byte) (*v1.Pod, error) {
	const kind = types.StrategicMergePatchType
	return c.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, kind, patch, metav1.PatchOptions{})
}

// track gives a pod the finalizer, and takes the mark.
func (c *Controller) track(ctx context.Context, key string, p *v1.Pod) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": p.UID, "finalizers": []string{finalizer}, "annotations": map[string]any{withdrawn: nil},
	}})
	if err != nil {
		return err
	}
	if err := c.patch(ctx, key, p, patch); err != nil && !isGone(err) {
		return fmt.Errorf("track pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// release removes the finalizer from a pod. A pod that is gone has none.
func (c *Controller) release(ctx context.Context, key string, p *v1.Pod) error {
	if !isTracked(p) {
		return nil
	}
	patch, err := releasePatch(map[string]any{"uid": p.UID})
	if err != nil {
		return err
	}
	_, err = c.patchPod(ctx, p, patch)
	if err != nil && !isGone(err) {
		return fmt.Errorf("removing tracking finalizer of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	c.podWrites.Freed(key, p, finalizer)
	return nil
}

// releasePatch returns a patch that removes the finalizer from the pod that meta describes.
func releasePatch(meta map[string]any) ([]byte, error) {
	meta["$deleteFromPrimitiveList/finalizers"] = []string{finalizer}
	return json.Marshal(map[string]any{"metadata": meta})
}

// isGone reports whether a patch failed because there is no such pod, or another one of its name: the
// UID in the patch cannot become the other one's.
func isGone(err error) bool {
	if apierrors.IsNotFound(err) {
		return true
	}
	cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid)
	return ok && apierrors.IsInvalid(err) && cause.Field == "metadata.uid"
}

// releaseAll releases pods, and takes those that it could release out of tracked.
func (c *Controller) releaseAll(ctx context.Context, j *batchv1.Job, list []*v1.Pod, tracked map[types.UID]bool) error {
	released := make([]bool, len(list))
	err := controller.Together(len(list), func(i int) error {
		err := c.release(ctx, keyOf(j), list[i])
		released[i] = err == nil
		return err
	})
	for i, p := range list {
		if released[i] {
			delete(tracked, p.UID)
		}
	}
	return err
}

// putStatus writes a status that differs from the one that the job has, and returns the job as it is
// then. It fails with a conflict if the job is not the newest: the status would follow from an old one.
func (c *Controller) putStatus(ctx context.Context, j *batchv1.Job, st batchv1.JobStatus) (*batchv1.Job, error) {
	if equality.Semantic.DeepEqual(j.Status, st) {
		return j, nil
	}
	changed := j.DeepCopy()
	changed.Status = st
	got, err := c.client.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update the status of job %s/%s: %w", j.Namespace, j.Name, err)
	}
	c.jobWrites.Wrote(keyOf(j), got)
	return got, nil
}
