// Package cronjob creates the Jobs of CronJobs at their times.
//
// A reconciliation waits until the informers have what the last one wrote (package written), plans
// (planFor, a pure function), carries the plan out, writes the status, and sleeps until the schedule's
// next time. When somebody sets the clock, it looks at all cron jobs again.
//
// The name of a job follows from its time, so that no time gets two jobs, whenever the process is
// killed; and what a killed process did not write into the status is read from the jobs it created.
// Reasons and messages of events are upstream's.
package cronjob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/written"
)

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// creationSkew has upstream's name.
var creationSkew = metrics.NewHistogram(&metrics.HistogramOpts{
	Subsystem: "cronjob_controller", Name: "job_creation_skew_duration_seconds",
	Help: "How long after its time a job was created.", Buckets: metrics.ExponentialBuckets(1, 2, 10),
})

func init() { legacyregistry.MustRegister(creationSkew) }

// Controller creates jobs. Create one with New.
type Controller struct {
	client clientset.Interface
	loop   *controller.Loop
	events record.EventRecorder
	clock  controller.Clock

	crons, jobs cache.Indexer
	// What was written to them, by the cron job's key.
	cronWrites, jobWrites *written.Log

	mu    sync.Mutex
	known map[string]*memory // by the cron job's key
}

// memory is what no object tells.
type memory struct {
	uid            types.UID
	schedule, zone string
	since          time.Time // the schedule has been this one since then; zero if for longer
	told           []event   // by the last plan
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory, clock controller.Clock) (*Controller, error) {
	crons, jobs := f.Batch().V1().CronJobs().Informer(), f.Batch().V1().Jobs().Informer()
	if err := claim.AddIndex(jobs); err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, clock: clock, crons: crons.GetIndexer(), jobs: jobs.GetIndexer(),
		cronWrites: written.New(crons.GetIndexer()), jobWrites: written.New(jobs.GetIndexer()),
		known: map[string]*memory{},
	}
	c.loop = controller.NewLoop("cronjob", c.sync)
	c.loop.WaitFor(c.cronWrites, c.jobWrites)
	if err := c.loop.Watch(crons, c.loop.AddObject); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(jobs, c.jobChanged)
}

// Run creates jobs until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "cronjob-controller")
	defer stop()
	c.events = events
	return c.loop.RunByClock(ctx, c.clock, c.crons.ListKeys)
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

func (c *Controller) jobChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if j, ok := o.(*batchv1.Job); ok {
			if ref := claim.ControllerOf(j, kind); ref != nil {
				c.loop.Add(j.Namespace + "/" + ref.Name)
			}
		}
	}
}

func (c *Controller) sync(ctx context.Context, key string) error {
	item, exists, err := c.crons.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		c.forget(key)
		return nil
	}
	cron := item.(*batchv1.CronJob)
	f, err := c.observe(ctx, cron)
	if err != nil {
		return err
	}
	p := planFor(f)
	c.tell(cron, p.events)
	status, err := c.carryOut(ctx, cron, p)
	if err := errors.Join(err, c.putStatus(ctx, cron, status)); err != nil {
		return err
	}
	if !p.next.IsZero() {
		c.loop.AddAfter(key, time.Until(p.next))
	}
	return nil
}

func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, key)
}

func (c *Controller) observe(ctx context.Context, cron *batchv1.CronJob) (facts, error) {
	jobs, err := claim.Controlled[*batchv1.Job](c.jobs, cron.UID)
	if err != nil {
		return facts{}, err
	}
	slices.SortFunc(jobs, compareStart)
	f := facts{cron: cron, jobs: jobs, gone: map[types.UID]bool{}, now: time.Now()}
	f.since = c.rememberSchedule(cron, f.now)
	for _, r := range cron.Status.Active {
		if slices.ContainsFunc(jobs, func(j *batchv1.Job) bool { return j.UID == r.UID }) {
			continue
		}
		// The informer may not know it yet.
		live, err := c.client.BatchV1().Jobs(cron.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			f.gone[r.UID] = true
		case err != nil:
			return facts{}, fmt.Errorf("active job %s/%s: %w", cron.Namespace, r.Name, err)
		case live.UID != r.UID || !metav1.IsControlledBy(live, cron):
			f.gone[r.UID] = true
		}
	}
	return f, nil
}

// rememberSchedule returns since when the schedule has been what it is, if it was seen to change.
func (c *Controller) rememberSchedule(cron *batchv1.CronJob, now time.Time) time.Time {
	zone := ""
	if z := cron.Spec.TimeZone; z != nil {
		zone = *z
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.known[keyOf(cron)]
	switch {
	case m == nil || m.uid != cron.UID:
		m = &memory{uid: cron.UID, schedule: cron.Spec.Schedule, zone: zone}
		c.known[keyOf(cron)] = m
	case m.schedule != cron.Spec.Schedule || m.zone != zone:
		m.schedule, m.zone, m.since = cron.Spec.Schedule, zone, now
	}
	return m.since
}

// tell tells events that the last plan did not tell.
func (c *Controller) tell(cron *batchv1.CronJob, events []event) {
	c.mu.Lock()
	m := c.known[keyOf(cron)]
	before := m.told
	m.told = events
	c.mu.Unlock()
	for _, e := range events {
		if !slices.Contains(before, e) {
			c.events.Event(cron, e.kind, e.reason, e.message)
		}
	}
}

// carryOut deletes and creates jobs, and returns the status that follows. After an error it is the one
// that follows from what was done.
func (c *Controller) carryOut(ctx context.Context, cron *batchv1.CronJob, p plan) (batchv1.CronJobStatus, error) {
	status := p.status
	var errs []error
	for _, j := range p.remove {
		errs = append(errs, c.remove(ctx, cron, j.Name, j.UID))
	}
	for _, r := range p.replace {
		if err := c.remove(ctx, cron, r.Name, r.UID); err != nil {
			return status, errors.Join(append(errs, fmt.Errorf("could not replace job %s/%s: %w", r.Namespace, r.Name, err))...)
		}
		status.Active = without(status.Active, r.UID)
	}
	if p.start.IsZero() {
		return status, errors.Join(errs...)
	}
	j, err := c.create(ctx, cron, p.start)
	if err != nil {
		return status, errors.Join(append(errs, err)...)
	}
	status.LastScheduleTime = new(metav1.NewTime(p.start))
	if j != nil {
		status.Active = append(slices.Clone(status.Active), reference(j))
	}
	return status, errors.Join(errs...)
}

// remove deletes a job and its pods. One that is gone, or another of its name, is just what was
// wanted.
func (c *Controller) remove(ctx context.Context, cron *batchv1.CronJob, name string, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := c.client.BatchV1().Jobs(cron.Namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid},
	})
	gone := &metav1.ObjectMeta{Namespace: cron.Namespace, Name: name, UID: uid}
	switch {
	case apierrors.IsConflict(err): // another one has its name, or a webhook does not want it now
		return err
	case apierrors.IsNotFound(err):
		c.jobWrites.Deleted(keyOf(cron), gone)
		return nil
	case err != nil:
		c.events.Eventf(cron, v1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return err
	}
	c.jobWrites.Deleted(keyOf(cron), gone)
	c.events.Eventf(cron, v1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	return nil
}

// create creates the job of a time. If there is one already, it is this cron job's, or nil.
func (c *Controller) create(ctx context.Context, cron *batchv1.CronJob, at time.Time) (*batchv1.Job, error) {
	jobs := c.client.BatchV1().Jobs(cron.Namespace)
	j, err := jobs.Create(ctx, jobFor(cron, at), metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return nil, err
	case apierrors.IsAlreadyExists(err):
		live, err := jobs.Get(ctx, jobName(cron, at), metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		c.jobWrites.Wrote(keyOf(cron), live)
		if !metav1.IsControlledBy(live, cron) || endOf(live) != "" {
			return nil, nil
		}
		return live, nil
	case err != nil:
		c.events.Eventf(cron, v1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return nil, err
	}
	creationSkew.Observe(j.CreationTimestamp.Sub(at).Seconds())
	c.jobWrites.Wrote(keyOf(cron), j)
	c.events.Eventf(cron, v1.EventTypeNormal, "SuccessfulCreate", "Created job %v", j.Name)
	return j, nil
}

// putStatus writes a status that differs from the one that the cron job has.
func (c *Controller) putStatus(ctx context.Context, cron *batchv1.CronJob, st batchv1.CronJobStatus) error {
	if equality.Semantic.DeepEqual(cron.Status, st) {
		return nil
	}
	changed := cron.DeepCopy()
	changed.Status = st
	got, err := c.client.BatchV1().CronJobs(cron.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update the status of cron job %s/%s: %w", cron.Namespace, cron.Name, err)
	}
	c.cronWrites.Wrote(keyOf(cron), got)
	return nil
}
