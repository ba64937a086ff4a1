// Package ttlafterfinished deletes jobs a while after they have finished, if they ask for that
// (spec.ttlSecondsAfterFinished). A job is deleted in the foreground: its pods go first. What the
// informer says is only a reason to look: the API server's own answer decides.
package ttlafterfinished

import (
	"context"
	"fmt"
	"math"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"wherry.dev/internal/controller"
)

// deletionDelay has upstream's name.
var deletionDelay = metrics.NewHistogram(&metrics.HistogramOpts{
	Subsystem: "ttl_after_finished_controller", Name: "job_deletion_duration_seconds",
	Help: "How long after the end of its time to live a job was deleted.", Buckets: metrics.ExponentialBuckets(0.1, 2, 14),
})

func init() { legacyregistry.MustRegister(deletionDelay) }

// Controller deletes jobs. Create one with New.
type Controller struct {
	client clientset.Interface
	jobs   cache.Indexer
	loop   *controller.Loop
	clock  controller.Clock
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory, clock controller.Clock) (*Controller, error) {
	jobs := f.Batch().V1().Jobs().Informer()
	c := &Controller{client: client, jobs: jobs.GetIndexer(), clock: clock}
	c.loop = controller.NewLoop("ttl_jobs_to_delete", c.sync)
	return c, c.loop.Watch(jobs, func(_, obj any) {
		if j, ok := obj.(*batchv1.Job); ok {
			if _, ends := endOfLife(j); ends {
				c.loop.AddObject(nil, j)
			}
		}
	})
}

// Run deletes jobs until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	return c.loop.RunByClock(ctx, c.clock, c.jobs.ListKeys)
}

// endOfLife returns when a job is to be deleted, if it is: only once it has finished.
func endOfLife(j *batchv1.Job) (time.Time, bool) {
	ttl := j.Spec.TTLSecondsAfterFinished
	if ttl == nil || j.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range j.Status.Conditions {
		isEnd := (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == v1.ConditionTrue
		if isEnd && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Add(time.Duration(*ttl) * time.Second), true
		}
	}
	return time.Time{}, false
}

func (c *Controller) sync(ctx context.Context, key string) error {
	item, exists, err := c.jobs.GetByKey(key)
	if err != nil || !exists {
		return err
	}
	known := item.(*batchv1.Job)
	if wait := c.left(known); wait > 0 {
		c.wait(key, wait)
		return nil
	}
	j, err := c.client.BatchV1().Jobs(known.Namespace).Get(ctx, known.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("job %s: %w", key, err)
	}
	if wait := c.left(j); wait > 0 {
		c.wait(key, wait)
		return nil
	}
	return c.remove(ctx, j)
}

// never is how long a job is left that is not to be deleted.
const never = time.Duration(math.MaxInt64)

func (c *Controller) left(j *batchv1.Job) time.Duration {
	end, ends := endOfLife(j)
	if !ends {
		return never
	}
	return time.Until(end)
}

func (c *Controller) wait(key string, wait time.Duration) {
	if wait != never {
		c.loop.AddAfter(key, wait)
	}
}

// remove deletes a job, unless it is another one, or another version, by now.
func (c *Controller) remove(ctx context.Context, j *batchv1.Job) error {
	foreground := metav1.DeletePropagationForeground
	err := c.client.BatchV1().Jobs(j.Namespace).Delete(ctx, j.Name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		Preconditions:     &metav1.Preconditions{UID: &j.UID, ResourceVersion: &j.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete job %s/%s: %w", j.Namespace, j.Name, err)
	}
	end, _ := endOfLife(j)
	deletionDelay.Observe(time.Since(end).Seconds())
	return nil
}
