// Package job runs the pods of Jobs until enough of them have succeeded, or too many have failed.
//
// A reconciliation
//
//  1. waits until the informers have what the last one wrote (package written),
//  2. adopts and releases pods (package claim),
//  3. plans (planFor, a pure function) and carries the plan out,
//  4. counts the pods that have ended (accountFor, a pure function; account.go has the order of writes),
//  5. finishes the job, once nothing of it is left.
//
// No completion is counted twice or lost, whenever the process is killed: until a pod is counted, its
// finalizer keeps it, and while it is being counted, the job's status lists it. A pod that is not to
// count, because the job gives it up, bears a mark until it is deleted (withdraw). Finalizers that nobody
// needs any more are removed (orphan.go). Reasons and messages of events and conditions are
// upstream's.
package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/written"
)

// Controller runs the pods of jobs. Create one with New.
type Controller struct {
	client  clientset.Interface
	loop    *controller.Loop // by job
	orphans *controller.Loop // by pod
	events  record.EventRecorder

	jobs, pods cache.Indexer
	// What was written to them, by the job's key.
	jobWrites, podWrites *written.Log

	mu       sync.Mutex
	failures map[string]remembers // by the job's key
	doubts   map[string]bool      // jobs that may have pods which nobody told of
}

// remembers are the failures of one job.
type remembers struct {
	uid types.UID
	failures
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	jobs, pods := f.Batch().V1().Jobs().Informer(), f.Core().V1().Pods().Informer()
	if err := claim.AddIndex(pods); err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, jobs: jobs.GetIndexer(), pods: pods.GetIndexer(),
		jobWrites: written.New(jobs.GetIndexer()), podWrites: written.New(pods.GetIndexer()),
		failures: map[string]remembers{}, doubts: map[string]bool{},
	}
	c.loop = controller.NewLoop("job", c.sync)
	c.loop.WaitFor(waited{c.jobWrites, batchv1.GroupName, "jobs"}, waited{c.podWrites, v1.GroupName, "pods"})
	c.orphans = controller.NewLoop("job_orphan_pod", c.syncOrphan)
	if err := c.loop.Watch(jobs, c.jobChanged); err != nil {
		return nil, err
	}
	owners := claim.Waker[*v1.Pod]{Kind: kind, Owners: c.jobs, Selector: selectorOf, Add: c.wake}
	later := owners
	later.Add = func(key string) { c.loop.AddAfter(key, progressPatience) }
	handle := func(old, obj any) {
		if isProgress(old, obj) {
			later.Changed(old, obj)
		} else {
			owners.Changed(old, obj)
		}
	}
	if err := c.loop.Watch(pods, handle); err != nil {
		return nil, err
	}
	// An orphan is judged by its job, so both have to be there.
	if err := c.orphans.Watch(jobs, c.orphansOf); err != nil {
		return nil, err
	}
	return c, c.orphans.Watch(pods, c.podChanged)
}

// Run runs the pods of jobs until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "job-controller")
	defer stop()
	c.events = events
	loops := []*controller.Loop{c.loop, c.orphans}
	return controller.Together(len(loops), func(i int) error { return loops[i].Run(ctx) })
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

func selectorOf(item any) labels.Selector {
	s, err := metav1.LabelSelectorAsSelector(item.(*batchv1.Job).Spec.Selector)
	if err != nil {
		return nil
	}
	return s
}

func (c *Controller) jobChanged(old, obj any) {
	if j, ok := obj.(*batchv1.Job); ok && old == nil && externalManager(j) != "" {
		externalJobs.WithLabelValues(externalManager(j)).Inc()
	}
	c.loop.AddObject(old, obj)
}

// progressPatience is how long a job's status may lag behind what its pods do before they end
// (upstream's value). Many a pod has ended by then, and the status is written once less.
const progressPatience = time.Second

// isProgress reports whether a pod has only come closer to its end, as when it is bound, or ready:
// nothing has to be done about that.
func isProgress(old, obj any) bool {
	was, had := old.(*v1.Pod)
	is, has := obj.(*v1.Pod)
	return had && has && was.UID == is.UID && !pods.IsTerminal(is.Status.Phase) && is.DeletionTimestamp == nil &&
		equality.Semantic.DeepEqual(was.Finalizers, is.Finalizers) && equality.Semantic.DeepEqual(was.Labels, is.Labels) &&
		equality.Semantic.DeepEqual(was.OwnerReferences, is.OwnerReferences)
}

// wake looks at a job whose pod has changed. The more pods a job has, the longer it waits for further
// changes, up to upstream's second: every look is at all of them.
func (c *Controller) wake(key string) {
	item, exists, err := c.jobs.GetByKey(key)
	if err != nil || !exists {
		return
	}
	st := &item.(*batchv1.Job).Status
	c.loop.AddAfter(key, patienceFor(int(st.Active)+int(st.Succeeded)+int(st.Failed)))
}

func patienceFor(pods int) time.Duration {
	if pods < 20 {
		return 0
	}
	return min(time.Second, time.Duration(pods)*time.Millisecond/4)
}

func (c *Controller) sync(ctx context.Context, key string) error {
	item, exists, err := c.jobs.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		c.forget(key)
		return nil
	}
	j := item.(*batchv1.Job)
	if externalManager(j) != "" || isFinished(j) {
		c.forget(key)
		return nil
	}
	if m := j.Spec.CompletionMode; m != nil && *m != batchv1.NonIndexedCompletion && !isIndexed(j) {
		c.events.Event(j, v1.EventTypeWarning, "UnknownCompletionMode", "Skipped Job sync because completion mode is unknown")
		return nil
	}
	start, action := time.Now(), tracking
	err = c.reconcile(ctx, j, &action)
	result := "success"
	if err != nil {
		result = "error"
	}
	syncDuration.WithLabelValues(mode(j), result, action).Observe(time.Since(start).Seconds())
	syncs.WithLabelValues(mode(j), result, action).Inc()
	return err
}

func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, key)
	delete(c.doubts, key)
}

func (c *Controller) reconcile(ctx context.Context, j *batchv1.Job, action *string) error {
	key := keyOf(j)
	if err := c.removeDoubt(ctx, j); err != nil {
		return err
	}
	mine, err := c.claim(ctx, j)
	if err != nil {
		return err
	}
	if !c.podWrites.Caught(key) { // something was adopted, released, or found
		c.loop.AddAfter(key, controller.Patience)
		return nil
	}
	census := take(facts{job: j, pods: mine, before: c.remember(j, mine), now: time.Now()})
	p := planFor(census)
	o, planErr := c.carryOut(ctx, census, p)
	switch {
	case o.created > 0:
		*action = podsCreated
	case o.removed > 0:
		*action = podsDeleted
	}
	if p.wait > 0 {
		c.loop.AddAfter(key, p.wait)
	}
	return errors.Join(planErr, c.settle(ctx, j, mine, accountFor(census, p, o)))
}

// claim returns the pods that the job controls.
func (c *Controller) claim(ctx context.Context, j *batchv1.Job) ([]*v1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("job %s/%s: %w", j.Namespace, j.Name, err)
	}
	candidates, err := claim.Candidates[*v1.Pod](c.pods, j)
	if err != nil {
		return nil, err
	}
	return claim.Owner[*v1.Pod]{
		Object: j, Kind: kind, Finalizer: finalizer,
		Matches: func(p *v1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) },
		Live: func(ctx context.Context) (metav1.Object, error) {
			return c.client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, p *v1.Pod, patch []byte) error { return c.patch(ctx, keyOf(j), p, patch) },
	}.Claim(ctx, candidates)
}

// remember returns the failures that were counted already.
func (c *Controller) remember(j *batchv1.Job, mine []*v1.Pod) failures {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.failures[keyOf(j)]
	if !ok || known.uid != j.UID {
		known = remembers{j.UID, remembered(j, mine)}
		c.failures[keyOf(j)] = known
	}
	return known.failures
}

// settle writes the status, releases pods, and counts them.
func (c *Controller) settle(ctx context.Context, j *batchv1.Job, mine []*v1.Pod, a account) error {
	now, err := c.putStatus(ctx, j, a.status)
	if apierrors.IsNotFound(err) {
		return nil // its pods are orphans now
	}
	if err != nil {
		return err
	}
	c.listed(j, a)
	tracked := trackedOf(mine)
	releaseErr := c.releaseAll(ctx, j, a.release, tracked)
	st := now.Status.DeepCopy()
	settle(st, tracked)
	finished := finish(j, st, a.terminal, tracked)
	if _, err := c.putStatus(ctx, now, *st); err != nil {
		return errors.Join(releaseErr, err)
	}
	countEnds(j, &a.status, st)
	if finished {
		c.tellEnd(j, st, a.terminal)
	}
	return releaseErr
}

// listed does what follows from the status that lists what is uncounted.
func (c *Controller) listed(j *batchv1.Job, a account) {
	c.mu.Lock()
	c.failures[keyOf(j)] = remembers{j.UID, a.failures}
	c.mu.Unlock()
	countEnds(j, &j.Status, &a.status)
	for action, n := range a.actions {
		addTo(policyActions, n, string(action))
	}
	if e := a.event; e != nil {
		c.events.Event(j, e.kind, e.reason, e.message)
	}
}

// tellEnd tells users that a job has finished.
func (c *Controller) tellEnd(j *batchv1.Job, st *batchv1.JobStatus, terminal *batchv1.JobCondition) {
	if terminal.Type == batchv1.JobFailed {
		c.events.Event(j, v1.EventTypeWarning, terminal.Reason, terminal.Message)
		finishedJobs.WithLabelValues(mode(j), "failed", terminal.Reason).Inc()
		return
	}
	if n := j.Spec.Completions; n != nil && st.Succeeded > *n {
		c.events.Event(j, v1.EventTypeWarning, "TooManySucceededPods",
			"Too many succeeded pods running after completion count reached")
	}
	c.events.Event(j, v1.EventTypeNormal, "Completed", "Job completed")
	finishedJobs.WithLabelValues(mode(j), "succeeded", terminal.Reason).Inc()
}
