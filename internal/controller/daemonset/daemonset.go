// Package daemonset gives each node that a DaemonSet is for one of its pods. The controller decides
// which nodes these are; the scheduler binds the pods, whose affinity names the node.
//
// A reconciliation
//
//  1. waits until the informers have what the last one wrote (package written),
//  2. adopts and releases pods and revisions (package claim),
//  3. makes the newest revision that of the template (package history),
//  4. plans (planFor, a pure function) and carries the plan out,
//  5. writes the status that the plan has.
//
// Labels, tolerations, reasons and messages are upstream's.
package daemonset

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
	appslisters "k8s.io/client-go/listers/apps/v1"
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

var kind = history.DaemonSets.GroupVersionKind

// After a failed pod the next one on the same node waits, longer and longer (upstream's values).
const firstWait, longestWait = time.Second, 15 * time.Minute

// Controller serves DaemonSets. Create one with New.
type Controller struct {
	client    clientset.Interface
	loop      *controller.Loop
	control   podcontrol.Control
	revisions history.Keeper
	sets      appslisters.DaemonSetLister
	nodes     corelisters.NodeLister
	pods      cache.Indexer
	backoff   *flowcontrol.Backoff

	// setWrites has what was written to the sets, by their keys.
	setWrites *written.Log
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	sets, revisions := f.Apps().V1().DaemonSets(), f.Apps().V1().ControllerRevisions().Informer()
	pods, nodes := f.Core().V1().Pods().Informer(), f.Core().V1().Nodes()
	for _, informer := range []cache.SharedIndexInformer{pods, revisions} {
		if err := claim.AddIndex(informer); err != nil {
			return nil, err
		}
	}
	c := &Controller{
		client: client, sets: sets.Lister(), nodes: nodes.Lister(), pods: pods.GetIndexer(),
		control: podcontrol.Control{Client: client, Kind: kind, Writes: written.New(pods.GetIndexer())},
		revisions: history.Keeper{
			Client: client, Kind: history.DaemonSets, Index: revisions.GetIndexer(), Writes: written.New(revisions.GetIndexer()),
		},
		backoff:   flowcontrol.NewBackOff(firstWait, longestWait),
		setWrites: written.New(sets.Informer().GetIndexer()),
	}
	c.loop = controller.NewLoop("daemonset", c.sync)
	c.loop.WaitFor(c.setWrites, c.control.Writes, c.revisions.Writes)
	owners := sets.Informer().GetIndexer()
	ofPods := claim.Waker[*v1.Pod]{Kind: kind, Owners: owners, Selector: selector, Add: c.loop.Add}
	ofRevisions := claim.Waker[*appsv1.ControllerRevision]{Kind: kind, Owners: owners, Selector: selector, Add: c.loop.Add}
	return c, errors.Join(
		c.loop.Watch(sets.Informer(), c.loop.AddObject),
		c.loop.Watch(pods, ofPods.Changed),
		c.loop.Watch(revisions, func(old, obj any) {
			if old != nil || c.mayDepend(obj) {
				ofRevisions.Changed(old, obj)
			}
		}),
		c.loop.Watch(nodes.Informer(), c.nodeChanged),
	)
}

// mayDepend reports whether a set may depend on a new revision. One that has a set already changes nothing for it,
// unless the set waits for it: its own come with a reconciliation, and those of others are looked at in the next one.
func (c *Controller) mayDepend(obj any) bool {
	rev, ok := obj.(*appsv1.ControllerRevision)
	if !ok {
		return true
	}
	ref := claim.ControllerOf(rev, kind)
	return ref == nil || c.revisions.Writes.Waits(rev.Namespace+"/"+ref.Name)
}

// Run keeps sets until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "daemonset-controller")
	defer stop()
	c.control.Events = events
	return c.loop.Run(ctx)
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// selector returns a set's selector, or nil if it is invalid.
func selector(item any) labels.Selector {
	return claim.Selector(item.(*appsv1.DaemonSet).Spec.Selector)
}

// nodeChanged wakes the sets that judge a node differently now, or a node that is gone.
func (c *Controller) nodeChanged(old, obj any) {
	was, _ := old.(*v1.Node)
	is, _ := obj.(*v1.Node)
	if sameForAll(was, is) {
		return
	}
	sets, err := c.sets.List(labels.Everything())
	if err != nil {
		return
	}
	for _, ds := range sets {
		if j := newJudge(ds); j.of(was) != j.of(is) || is == nil {
			c.loop.Add(keyOf(ds))
		}
	}
}

func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	ds, err := c.sets.DaemonSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	matches := selector(ds)
	switch {
	case ds.DeletionTimestamp != nil: // the garbage collector has its pods and revisions
		return nil
	case matches == nil:
		klog.FromContext(ctx).Info("Invalid selector, the daemon set is left alone", "key", key)
		return nil
	case matches.Empty():
		c.control.Events.Event(ds, v1.EventTypeWarning, "SelectingAll",
			"This daemon set is selecting all pods. A non-empty selector is required.")
		return nil
	case !matches.Matches(labels.Set(ds.Spec.Template.Labels)): // each new pod would be released at once
		klog.FromContext(ctx).Info("The selector does not match the template, the daemon set is left alone", "key", key)
		return nil
	}
	return c.reconcile(ctx, ds, matches)
}

func (c *Controller) reconcile(ctx context.Context, ds *appsv1.DaemonSet, matches labels.Selector) error {
	owner := history.Owner{Object: ds, Selector: matches, Template: &ds.Spec.Template, Collisions: ds.Status.CollisionCount}
	live := func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().DaemonSets(ds.Namespace).Get(ctx, ds.Name, metav1.GetOptions{})
	}
	revs, err := c.revisions.Claim(ctx, owner, live)
	if err != nil {
		return err
	}
	past, err := history.PlanFor(history.DaemonSets, owner, revs)
	if err != nil {
		return err
	}
	its, err := c.claimPods(ctx, ds, matches, live)
	if err != nil {
		return err
	}
	if len(past.Duplicates) > 0 {
		return c.merge(ctx, owner, its, past)
	}
	current, err := c.revisions.Settle(ctx, owner, past)
	if errors.Is(err, history.ErrCollision) {
		return c.collided(ctx, ds)
	}
	if err != nil {
		return err
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	p := planFor(facts{
		ds: ds, pods: its, nodes: nodes, hash: history.DaemonSets.HashOf(current), now: time.Now(),
		backoff: func(node string) time.Duration { return c.waits(ds, node) },
	})
	if err := c.carryOut(ctx, ds, p); err != nil {
		return errors.Join(err, c.putStatus(ctx, ds, p.status))
	}
	return errors.Join(c.forget(ctx, owner, its, past), c.putStatus(ctx, ds, p.status))
}

// claimPods adopts and releases pods, and returns the set's own.
func (c *Controller) claimPods(ctx context.Context, ds *appsv1.DaemonSet, matches labels.Selector, live claim.Live) ([]*v1.Pod, error) {
	all, err := claim.Candidates[*v1.Pod](c.pods, ds)
	if err != nil {
		return nil, err
	}
	mine := func(p *v1.Pod) bool { return matches.Matches(labels.Set(p.Labels)) }
	return c.control.Claimer(ds, mine, live).Claim(ctx, all)
}

func backoffKey(ds *appsv1.DaemonSet, node string) string {
	return fmt.Sprintf("%s/%d/%s", ds.UID, ds.Status.ObservedGeneration, node)
}

// waits returns after how long a failed pod on a node may be replaced.
func (c *Controller) waits(ds *appsv1.DaemonSet, node string) time.Duration {
	key, now := backoffKey(ds, node), c.backoff.Clock.Now()
	if !c.backoff.IsInBackOffSinceUpdate(key, now) {
		return 0
	}
	return c.backoff.Get(key)
}

// carryOut creates and deletes pods.
func (c *Controller) carryOut(ctx context.Context, ds *appsv1.DaemonSet, p plan) error {
	if p.recheck > 0 {
		c.loop.AddAfter(keyOf(ds), p.recheck)
	}
	if len(p.failed) > 0 {
		c.backoff.GC()
	}
	for _, node := range p.failed {
		c.backoff.Next(backoffKey(ds, node), c.backoff.Clock.Now())
	}
	for _, e := range p.events {
		c.control.Events.Event(ds, e.kind, e.reason, e.message)
	}
	hash := p.hash
	err := controller.SlowStart(len(p.create), func(i int) error {
		return c.control.Create(ctx, ds, newPod(ds, p.create[i], hash))
	})
	return errors.Join(err, controller.Together(len(p.remove), func(i int) error { return c.control.Delete(ctx, ds, p.remove[i]) }))
}

// merge leaves one of several revisions of the same template. Pods of the others become its own first.
func (c *Controller) merge(ctx context.Context, owner history.Owner, its []*v1.Pod, past history.Plan) error {
	keep := history.DaemonSets.HashOf(past.Current)
	for _, rev := range past.Duplicates {
		for _, p := range its {
			if p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != history.DaemonSets.HashOf(rev) {
				continue
			}
			if err := c.control.Label(ctx, owner, p, map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: keep}); err != nil {
				return err
			}
		}
		if err := c.revisions.Remove(ctx, owner, rev); err != nil {
			return err
		}
	}
	c.loop.AddAfter(keyOf(owner), controller.Patience)
	return nil
}

// collided notes that the name of a new revision is taken: the next one gets another.
func (c *Controller) collided(ctx context.Context, ds *appsv1.DaemonSet) error {
	next := ds.Status.DeepCopy()
	n := int32(1)
	if next.CollisionCount != nil {
		n += *next.CollisionCount
	}
	next.CollisionCount = &n
	return c.putStatus(ctx, ds, *next)
}

// forget removes the oldest revisions above the limit. Those that pods have stay.
func (c *Controller) forget(ctx context.Context, owner history.Owner, its []*v1.Pod, past history.Plan) error {
	used := map[string]bool{}
	for _, p := range its {
		used[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	inUse := func(rev *appsv1.ControllerRevision) bool { return used[history.DaemonSets.HashOf(rev)] }
	for _, rev := range history.Surplus(past.Old, owner.Object.(*appsv1.DaemonSet).Spec.RevisionHistoryLimit, inUse) {
		if err := c.revisions.Remove(ctx, owner, rev); err != nil {
			return err
		}
	}
	return nil
}

// putStatus writes a status that differs from the one that the set has.
func (c *Controller) putStatus(ctx context.Context, ds *appsv1.DaemonSet, st appsv1.DaemonSetStatus) error {
	if equality.Semantic.DeepEqual(ds.Status, st) {
		return nil
	}
	next := ds.DeepCopy()
	next.Status = st
	got, err := c.client.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update the status of daemon set %s/%s: %w", ds.Namespace, ds.Name, err)
	}
	c.setWrites.Wrote(keyOf(ds), got)
	return nil
}
