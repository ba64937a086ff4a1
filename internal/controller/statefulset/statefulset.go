// Package statefulset gives a StatefulSet its pods, each of which has a name, a number and volume
// claims of its own that outlive it.
//
// A reconciliation
//
//  1. waits until the informers have what the last one wrote (package written),
//  2. adopts and releases pods and revisions (package claim),
//  3. makes the newest revision that of the template (package history),
//  4. plans (planFor, a pure function) and carries the plan out, phase after phase,
//  5. writes the status that the plan has.
//
// There are never two pods of one name: a name is free only once its pod is gone. Names, labels, reasons
// and messages are upstream's.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/history"
	"wherry.dev/internal/controller/podcontrol"
	"wherry.dev/internal/controller/written"
)

var kind = history.StatefulSets.GroupVersionKind

// After a pod that has ended the next one of its name waits, longer and longer (a DaemonSet's values).
const firstWait, longestWait = time.Second, 15 * time.Minute

// Controller serves StatefulSets. Create one with New.
type Controller struct {
	client     clientset.Interface
	loop       *controller.Loop
	control    podcontrol.Control
	revisions  history.Keeper
	sets, pods cache.Indexer
	claims     corelisters.PersistentVolumeClaimLister
	backoff    *flowcontrol.Backoff

	// What was written to sets and to claims, by the set's key.
	setWrites, claimWrites *written.Log
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	sets, revisions := f.Apps().V1().StatefulSets().Informer(), f.Apps().V1().ControllerRevisions().Informer()
	pods, claims := f.Core().V1().Pods().Informer(), f.Core().V1().PersistentVolumeClaims()
	for _, informer := range []cache.SharedIndexInformer{pods, revisions} {
		if err := claim.AddIndex(informer); err != nil {
			return nil, err
		}
	}
	c := &Controller{
		client: client, sets: sets.GetIndexer(), pods: pods.GetIndexer(), claims: claims.Lister(),
		control: podcontrol.Control{Client: client, Kind: kind, Writes: written.New(pods.GetIndexer())},
		revisions: history.Keeper{
			Client: client, Kind: history.StatefulSets, Index: revisions.GetIndexer(), Writes: written.New(revisions.GetIndexer()),
		},
		backoff:   flowcontrol.NewBackOff(firstWait, longestWait),
		setWrites: written.New(sets.GetIndexer()), claimWrites: written.New(claims.Informer().GetIndexer()),
	}
	c.loop = controller.NewLoop("statefulset", c.sync)
	c.loop.WaitFor(c.setWrites, c.claimWrites, c.control.Writes, c.revisions.Writes)
	ofPods := claim.Waker[*v1.Pod]{Kind: kind, Owners: c.sets, Selector: selector, Add: c.loop.Add}
	ofRevisions := claim.Waker[*appsv1.ControllerRevision]{Kind: kind, Owners: c.sets, Selector: selector, Add: c.loop.Add}
	return c, errors.Join(
		c.loop.Watch(sets, c.loop.AddObject),
		c.loop.Watch(pods, ofPods.Changed),
		c.loop.Watch(revisions, ofRevisions.Changed),
		c.loop.Watch(claims.Informer(), c.claimChanged),
	)
}

// Run keeps sets until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "statefulset-controller")
	defer stop()
	c.control.Events = events
	return c.loop.Run(ctx)
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// selector returns a set's selector, or nil if it is invalid.
func selector(item any) labels.Selector {
	return claim.Selector(item.(*appsv1.StatefulSet).Spec.Selector)
}

// claimChanged wakes the sets that may wait for the end of a claim, or whose claim is gone or has other
// owners.
func (c *Controller) claimChanged(old, obj any) {
	was, _ := old.(*v1.PersistentVolumeClaim)
	is, _ := obj.(*v1.PersistentVolumeClaim)
	switch {
	case was == nil:
		was = is
	case is != nil && (is.DeletionTimestamp != nil) == (was.DeletionTimestamp != nil) &&
		equality.Semantic.DeepEqual(is.OwnerReferences, was.OwnerReferences):
		return
	}
	items, err := c.sets.ByIndex(cache.NamespaceIndex, was.Namespace)
	if err != nil {
		return
	}
	for _, item := range items {
		if set := item.(*appsv1.StatefulSet); mayHave(set, was.Name) {
			c.loop.Add(keyOf(set))
		}
	}
}

func (c *Controller) sync(ctx context.Context, key string) error {
	item, exists, err := c.sets.GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		name, err := cache.ParseObjectName(key)
		forgetCounts(name.Namespace, name.Name)
		return err
	}
	set := item.(*appsv1.StatefulSet)
	matches := selector(set)
	if matches == nil {
		klog.FromContext(ctx).Info("Invalid selector, the stateful set is left alone", "key", key)
		return nil
	}
	if !matches.Matches(labels.Set(set.Spec.Template.Labels)) { // each new pod would be released at once
		klog.FromContext(ctx).Info("The selector does not match the template, the stateful set is left alone", "key", key)
		return nil
	}
	return c.reconcile(ctx, set, matches)
}

func (c *Controller) reconcile(ctx context.Context, set *appsv1.StatefulSet, matches labels.Selector) error {
	owner := history.Owner{Object: set, Selector: matches, Template: &set.Spec.Template, Collisions: set.Status.CollisionCount}
	live := func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
	revs, err := c.revisions.Claim(ctx, owner, live)
	if err != nil {
		return err
	}
	past, err := history.PlanFor(history.StatefulSets, owner, revs)
	if err != nil {
		return err
	}
	if past.Create && set.DeletionTimestamp != nil {
		return nil // its revisions go with it
	}
	its, err := c.claimPods(ctx, set, matches, live)
	if err != nil {
		return err
	}
	update, err := c.revisions.Settle(ctx, owner, past)
	if errors.Is(err, history.ErrCollision) {
		return c.collided(ctx, set)
	}
	if err != nil {
		return err
	}
	f, err := c.observe(set, its, past, update)
	if err != nil {
		return err
	}
	p := planFor(f)
	count(set, &p.status)
	err = c.carryOut(ctx, set, p)
	return errors.Join(err, c.forget(ctx, owner, f, past))
}

// claimPods adopts and releases pods, and returns the set's own.
func (c *Controller) claimPods(ctx context.Context, set *appsv1.StatefulSet, matches labels.Selector, live claim.Live) ([]*v1.Pod, error) {
	all, err := claim.Candidates[*v1.Pod](c.pods, set)
	if err != nil {
		return nil, err
	}
	mine := func(p *v1.Pod) bool {
		_, member := ordinalOf(set, p.Name)
		return member && matches.Matches(labels.Set(p.Labels))
	}
	return c.control.Claimer(set, mine, live).Claim(ctx, all)
}

// observe puts together what the plan follows from.
func (c *Controller) observe(set *appsv1.StatefulSet, its []*v1.Pod, past history.Plan, update *appsv1.ControllerRevision) (facts, error) {
	f := facts{set: set, pods: its, collisions: set.Status.CollisionCount, now: time.Now()}
	f.backoff = func(name string) time.Duration { return c.waits(set, name) }
	f.update = revision{update.Name, &set.Spec.Template}
	f.current = f.update
	for _, rev := range past.Old {
		if rev.Name != set.Status.CurrentRevision {
			continue
		}
		t, err := history.TemplateOf(rev)
		if err != nil {
			return f, err
		}
		f.current = revision{rev.Name, t}
	}
	f.claim = func(name string) *v1.PersistentVolumeClaim {
		pvc, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(name)
		if err != nil {
			return nil // a lister knows no other error than that there is none
		}
		return pvc
	}
	return f, nil
}

// collided notes that the name of a new revision is taken: the next one gets another.
func (c *Controller) collided(ctx context.Context, set *appsv1.StatefulSet) error {
	next := set.Status.DeepCopy()
	n := int32(1)
	if next.CollisionCount != nil {
		n += *next.CollisionCount
	}
	next.CollisionCount = &n
	return c.putStatus(ctx, set, *next)
}

// forget removes the oldest revisions above the limit. Those that pods have, or that the rollout goes
// from or to, do not count.
func (c *Controller) forget(ctx context.Context, owner history.Owner, f facts, past history.Plan) error {
	if f.set.DeletionTimestamp != nil {
		return nil
	}
	used := map[string]bool{f.current.name: true}
	for _, p := range f.pods {
		used[revisionOf(p)] = true
	}
	inUse := func(rev *appsv1.ControllerRevision) bool { return used[rev.Name] }
	unused := slices.DeleteFunc(slices.Concat(past.Old, past.Duplicates), inUse)
	for _, rev := range history.Surplus(unused, f.set.Spec.RevisionHistoryLimit, inUse) {
		if err := c.revisions.Remove(ctx, owner, rev); err != nil {
			return err
		}
	}
	return nil
}

// putStatus writes a status that differs from the one that the set has.
func (c *Controller) putStatus(ctx context.Context, set *appsv1.StatefulSet, st appsv1.StatefulSetStatus) error {
	if equality.Semantic.DeepEqual(set.Status, st) {
		return nil
	}
	next := set.DeepCopy()
	next.Status = st
	got, err := c.client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update the status of stateful set %s/%s: %w", set.Namespace, set.Name, err)
	}
	c.setWrites.Wrote(keyOf(set), got)
	return nil
}
