// Package replicaset keeps as many pods running as a ReplicaSet, or a ReplicationController, asks
// for. Both are served by the same code; a kind says what differs.
//
// A reconciliation
//
//  1. waits until the informers have what the last one wrote (package written),
//  2. adopts and releases pods (package claim),
//  3. plans (planFor, a pure function) and carries the plan out,
//  4. writes the status (statusOf, a pure function).
//
// Reasons and messages of events and conditions are upstream's.
package replicaset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/written"
)

// patience is after how long a reconciliation is repeated that waits for an event. The event itself
// repeats it at once; this is for the case that there is none.
const patience = time.Second

// Controller serves one kind. Create one with New or NewForReplicationControllers.
type Controller struct {
	kind
	client clientset.Interface
	loop   *controller.Loop
	events record.EventRecorder

	sets, pods cache.Indexer
	// What was written to them, by the set's key.
	setWrites, podWrites *written.Log
}

// New returns the controller of ReplicaSets, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	return newFor(replicaSets, client, f)
}

// NewForReplicationControllers returns the controller of ReplicationControllers, with the informers
// of f.
func NewForReplicationControllers(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	return newFor(replicationControllers, client, f)
}

func newFor(k kind, client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	sets, pods := k.informer(f), f.Core().V1().Pods().Informer()
	for _, informer := range []cache.SharedIndexInformer{sets, pods} {
		if err := claim.AddIndex(informer); err != nil {
			return nil, err
		}
	}
	c := &Controller{
		kind: k, client: client, sets: sets.GetIndexer(), pods: pods.GetIndexer(),
		setWrites: written.New(sets.GetIndexer()), podWrites: written.New(pods.GetIndexer()),
	}
	c.loop = controller.NewLoop(k.name, c.reconcile)
	if err := c.loop.Watch(sets, c.setChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(pods, c.podChanged)
}

// Run keeps the numbers of pods until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: c.client.CoreV1().Events("")})
	defer events.Shutdown()
	c.events = events.NewRecorder(scheme.Scheme, v1.EventSource{Component: c.component})
	return c.loop.Run(ctx)
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

func (c *Controller) setChanged(old, obj any) {
	for _, o := range []any{old, obj} {
		if s, ok := o.(object); ok {
			c.loop.Add(keyOf(s))
			return
		}
	}
}

// podChanged wakes the set that controls the pod, the one that did, and those that want an orphan.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	pod, _ := obj.(*v1.Pod)
	for _, p := range []*v1.Pod{was, pod} {
		if ref := c.controllerOf(p); ref != nil {
			c.loop.Add(p.Namespace + "/" + ref.Name)
		}
	}
	if pod == nil || metav1.GetControllerOfNoCopy(pod) != nil {
		return
	}
	if was == nil || metav1.GetControllerOfNoCopy(was) != nil || !maps.Equal(was.Labels, pod.Labels) {
		c.offer(pod)
	}
}

// controllerOf returns the pod's reference to a set of this kind that controls it, or nil.
func (c *Controller) controllerOf(p *v1.Pod) *metav1.OwnerReference {
	if p == nil {
		return nil
	}
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != c.Kind || ref.APIVersion != c.GroupVersion().String() {
		return nil
	}
	return ref
}

// offer wakes the sets that an orphan's labels match.
func (c *Controller) offer(pod *v1.Pod) {
	if len(pod.Labels) == 0 {
		return
	}
	items, err := c.sets.ByIndex(cache.NamespaceIndex, pod.Namespace)
	if err != nil {
		return
	}
	for _, item := range items {
		if s, err := c.view(item.(object)); err == nil && s.selector.Matches(labels.Set(pod.Labels)) {
			c.loop.Add(keyOf(s))
		}
	}
}

// reconcile repeats what sync does if it came upon a conflict: then the cache is behind, and the
// event that brings the newer object wakes the set again.
func (c *Controller) reconcile(ctx context.Context, key string) error {
	err := c.sync(ctx, key)
	if apierrors.IsConflict(err) {
		klog.FromContext(ctx).V(4).Info("Conflict, waiting for the newer version", "kind", c.Kind, "key", key, "err", err)
		c.loop.AddAfter(key, patience)
		return nil
	}
	return err
}

func (c *Controller) sync(ctx context.Context, key string) error {
	item, exists, err := c.sets.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		c.setWrites.Forget(key)
		c.podWrites.Forget(key)
		return nil
	}
	if !c.setWrites.Caught(key) || !c.podWrites.Caught(key) {
		c.loop.AddAfter(key, patience)
		return nil
	}
	s, err := c.view(item.(object))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Invalid selector, the object is left alone", "kind", c.Kind, "key", key)
		return nil
	}
	f, err := c.observe(ctx, s)
	if err != nil {
		return err
	}
	if s.GetDeletionTimestamp() == nil {
		f.failure = c.setNumber(ctx, s, f.active)
	}
	now := time.Now()
	if err := c.putStatus(ctx, s, statusOf(s, c.kind, f, now)); err != nil {
		return errors.Join(f.failure, err)
	}
	if wait := nextAvailable(s, f.active, now); wait > 0 {
		c.loop.AddAfter(key, wait)
	}
	return f.failure
}

// observe claims the set's pods, and returns those that count.
func (c *Controller) observe(ctx context.Context, s set) (facts, error) {
	all, err := claim.Candidates[*v1.Pod](c.pods, s)
	if err != nil {
		return facts{}, err
	}
	matches := func(p *v1.Pod) bool { return s.selector.Matches(labels.Set(p.Labels)) }
	var f facts
	var candidates []*v1.Pod
	for _, p := range all {
		switch {
		case active(p):
			candidates = append(candidates, p)
		case terminating(p) && metav1.IsControlledBy(p, s) && matches(p):
			f.terminating = append(f.terminating, p)
		}
	}
	owner := claim.Owner[*v1.Pod]{
		Object: s.object, Kind: c.GroupVersionKind, Matches: matches,
		Live: func(ctx context.Context) (metav1.Object, error) {
			return c.get(ctx, c.client, s.GetNamespace(), s.GetName())
		},
		Patch: func(ctx context.Context, p *v1.Pod, patch []byte) error {
			got, err := c.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			if err == nil {
				c.podWrites.Wrote(keyOf(s), got)
			}
			return err
		},
	}
	f.active, err = owner.Claim(ctx, candidates)
	return f, err
}

// setNumber plans, and creates or deletes pods.
func (c *Controller) setNumber(ctx context.Context, s set, active []*v1.Pod) error {
	var related []*v1.Pod
	if len(active) > int(s.replicas) {
		var err error
		if related, err = c.related(s); err != nil {
			return err
		}
	}
	p := planFor(s.replicas, active, related, time.Now())
	if p.create > 0 {
		return slowStart(p.create, func() error { return c.create(ctx, s) })
	}
	return together(len(p.remove), func(i int) error { return c.remove(ctx, s, p.remove[i]) })
}

// related returns the pods that do the same work as the set's: those of all sets of the same
// controller (a Deployment's), or only the set's own if it has none.
func (c *Controller) related(s set) ([]*v1.Pod, error) {
	ref := metav1.GetControllerOfNoCopy(s.object)
	if ref == nil {
		return claim.Controlled[*v1.Pod](c.pods, s.GetUID())
	}
	siblings, err := claim.Controlled[metav1.Object](c.sets, ref.UID)
	if err != nil {
		return nil, err
	}
	var out []*v1.Pod
	for _, o := range siblings {
		its, err := claim.Controlled[*v1.Pod](c.pods, o.GetUID())
		if err != nil {
			return nil, err
		}
		out = append(out, its...)
	}
	return out, nil
}

// create makes one pod. In a namespace that is being deleted nothing can be created, and nothing has
// to be.
func (c *Controller) create(ctx context.Context, s set) error {
	pod, err := c.client.CoreV1().Pods(s.GetNamespace()).Create(ctx, newPod(s, c.kind), metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		c.events.Eventf(s.object, v1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		return err
	}
	c.podWrites.Wrote(keyOf(s), pod)
	c.events.Eventf(s.object, v1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", pod.Name)
	return nil
}

// remove deletes one pod. One that is gone, or another of its name, is just what was wanted.
func (c *Controller) remove(ctx context.Context, s set, p *v1.Pod) error {
	err := c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		c.podWrites.Deleted(keyOf(s), p)
		return nil
	case err != nil:
		c.events.Eventf(s.object, v1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	c.podWrites.Deleted(keyOf(s), p)
	c.events.Eventf(s.object, v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
	return nil
}

// putStatus writes a status that differs from the one that the set has. If the set was changed
// meanwhile, it tries once more on the live one; the generation that was seen stays that of ours.
func (c *Controller) putStatus(ctx context.Context, s set, st appsv1.ReplicaSetStatus) error {
	if equality.Semantic.DeepEqual(s.status, st) {
		return nil
	}
	got, err := c.updateStatus(ctx, c.client, s.object, st)
	if apierrors.IsConflict(err) {
		live, getErr := c.get(ctx, c.client, s.GetNamespace(), s.GetName())
		if getErr != nil || live.GetUID() != s.GetUID() {
			return err
		}
		got, err = c.updateStatus(ctx, c.client, live, st)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update the status of %s %s/%s: %w", c.Kind, s.GetNamespace(), s.GetName(), err)
	}
	c.setWrites.Wrote(keyOf(s), got)
	return nil
}

// slowStart calls f n times, in batches of 1, 2, 4 and so on, each of which runs at once. After a
// batch in which a call failed there is no further one: a set whose pods are all refused, by a quota
// for instance, costs one request and not hundreds.
func slowStart(n int, f func() error) error {
	for batch := 1; n > 0; batch *= 2 {
		size := min(batch, n)
		if err := together(size, func(int) error { return f() }); err != nil {
			return err
		}
		n -= size
	}
	return nil
}

// together calls f with 0 to n-1 at once, and returns one of the errors: usually they are all alike.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { errs[i] = f(i) })
	}
	calls.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
