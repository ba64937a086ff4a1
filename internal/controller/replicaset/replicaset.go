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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/podcontrol"
	"wherry.dev/internal/controller/written"
)

// Controller serves one kind. Create one with New or NewForReplicationControllers.
type Controller struct {
	kind
	client  clientset.Interface
	loop    *controller.Loop
	control podcontrol.Control

	sets, pods cache.Indexer
	// setWrites has what was written to the sets, by their keys.
	setWrites *written.Log
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
		setWrites: written.New(sets.GetIndexer()),
		control:   podcontrol.Control{Client: client, Kind: k.GroupVersionKind, Writes: written.New(pods.GetIndexer())},
	}
	c.loop = controller.NewLoop(k.name, c.sync)
	c.loop.WaitFor(c.setWrites, c.control.Writes)
	if err := c.loop.Watch(sets, c.loop.AddObject); err != nil {
		return nil, err
	}
	owners := claim.Waker[*v1.Pod]{Kind: k.GroupVersionKind, Owners: c.sets, Selector: c.selector, Add: c.loop.Add}
	return c, c.loop.Watch(pods, owners.Changed)
}

// Run keeps the numbers of pods until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, c.component)
	defer stop()
	c.control.Events = events
	return c.loop.Run(ctx)
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// selector returns a set's selector, or nil if it is invalid.
func (c *Controller) selector(item any) labels.Selector {
	s, err := c.view(item.(object))
	if err != nil {
		return nil
	}
	return s.selector
}

func (c *Controller) sync(ctx context.Context, key string) error {
	item, exists, err := c.sets.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		return nil
	}
	s, err := c.view(item.(object))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Invalid selector, the object is left alone", "kind", c.Kind, "key", key)
		return nil
	}
	if !s.selector.Matches(labels.Set(s.template.Labels)) { // each new pod would be released at once
		klog.FromContext(ctx).Info("The selector does not match the template, the object is left alone", "kind", c.Kind, "key", key)
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
		case pods.IsActive(p):
			candidates = append(candidates, p)
		case pods.IsTerminating(p) && metav1.IsControlledBy(p, s) && matches(p):
			f.terminating = append(f.terminating, p)
		}
	}
	owner := c.control.Claimer(s.object, matches, func(ctx context.Context) (metav1.Object, error) {
		return c.get(ctx, c.client, s.GetNamespace(), s.GetName())
	})
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
		return controller.SlowStart(p.create, func(int) error {
			return c.control.Create(ctx, s.object, pods.FromTemplate(s.template, s.object, c.GroupVersionKind))
		})
	}
	countAges(active, p.remove, time.Now())
	return controller.Together(len(p.remove), func(i int) error { return c.control.Delete(ctx, s.object, p.remove[i]) })
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
