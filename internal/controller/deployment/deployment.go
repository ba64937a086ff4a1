// Package deployment rolls out the template of a Deployment: it creates a ReplicaSet for each
// template, and moves replicas from the old ones to the current one, step by step.
//
// A reconciliation
//
//  1. waits until the informers have what the last one wrote (package written),
//  2. adopts and releases ReplicaSets (package claim),
//  3. plans (planFor, a pure function) and carries out the plan's steps in their order,
//  4. writes the status that the plan has.
//
// It never waits for pods: when a ReplicaSet's status changes, the next plan takes the next step.
// Names of ReplicaSets, annotations, reasons and messages are upstream's.
package deployment

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/claim"
	"wherry.dev/internal/controller/written"
)

var (
	kind           = appsv1.SchemeGroupVersion.WithKind("Deployment")
	replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
)

// Controller rolls out Deployments. Create one with New.
type Controller struct {
	client      clientset.Interface
	deployments appslisters.DeploymentLister
	setLister   appslisters.ReplicaSetLister
	sets, pods  cache.Indexer
	loop        *controller.Loop
	events      record.EventRecorder

	// What was written to ReplicaSets and to Deployments, by the Deployment's key.
	setWrites, ownWrites *written.Log
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	deployments, sets, pods := f.Apps().V1().Deployments(), f.Apps().V1().ReplicaSets(), f.Core().V1().Pods().Informer()
	for _, informer := range []cache.SharedIndexInformer{sets.Informer(), pods} {
		if err := claim.AddIndex(informer); err != nil {
			return nil, err
		}
	}
	c := &Controller{
		client: client, deployments: deployments.Lister(), setLister: sets.Lister(),
		sets: sets.Informer().GetIndexer(), pods: pods.GetIndexer(),
		setWrites: written.New(sets.Informer().GetIndexer()), ownWrites: written.New(deployments.Informer().GetIndexer()),
	}
	c.loop = controller.NewLoop("deployment", c.sync)
	c.loop.WaitFor(c.setWrites, c.ownWrites)
	if err := c.loop.Watch(deployments.Informer(), c.loop.AddObject); err != nil {
		return nil, err
	}
	owners := claim.Waker[*appsv1.ReplicaSet]{Kind: kind, Owners: deployments.Informer().GetIndexer(), Selector: selector, Add: c.loop.Add}
	if err := c.loop.Watch(sets.Informer(), owners.Changed); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(pods, c.podChanged)
}

// Run rolls out until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "deployment-controller")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// selector returns a Deployment's selector, or nil if it is invalid.
func selector(item any) labels.Selector {
	return claim.Selector(item.(*appsv1.Deployment).Spec.Selector)
}

// podChanged wakes a Deployment that may be waiting for the end of its old pods.
func (c *Controller) podChanged(old, obj any) {
	was, _ := old.(*v1.Pod)
	pod, _ := obj.(*v1.Pod)
	if was == nil || pods.IsTerminal(was.Status.Phase) || pod != nil && !pods.IsTerminal(pod.Status.Phase) {
		return
	}
	ref := claim.ControllerOf(was, replicaSetKind)
	if ref == nil {
		return
	}
	rs, err := c.setLister.ReplicaSets(was.Namespace).Get(ref.Name)
	if err != nil {
		return
	}
	if ref = claim.ControllerOf(rs, kind); ref == nil {
		return
	}
	if d, err := c.deployments.Deployments(rs.Namespace).Get(ref.Name); err == nil && !rolling(d) {
		c.loop.Add(keyOf(d))
	}
}

func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	d, err := c.deployments.Deployments(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if s := selector(d); s != nil && !s.Matches(labels.Set(d.Spec.Template.Labels)) { // it would release each new set at once
		klog.FromContext(ctx).Info("The selector does not match the template, the deployment is left alone", "deployment", key)
		return nil
	}
	f, err := c.observe(ctx, d)
	if err != nil {
		return err
	}
	return c.carryOut(ctx, d, planFor(f))
}

// observe claims the Deployment's ReplicaSets, and sees which of them have pods.
func (c *Controller) observe(ctx context.Context, d *appsv1.Deployment) (facts, error) {
	f := facts{deployment: d, now: time.Now(), running: map[types.UID]bool{}}
	if selectsAll(d) {
		return f, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return f, fmt.Errorf("deployment %s/%s has invalid label selector: %w", d.Namespace, d.Name, err)
	}
	all, err := claim.Candidates[*appsv1.ReplicaSet](c.sets, d)
	if err != nil {
		return f, err
	}
	owner := claim.Owner[*appsv1.ReplicaSet]{
		Object: d, Kind: kind,
		Matches: func(rs *appsv1.ReplicaSet) bool { return selector.Matches(labels.Set(rs.Labels)) },
		Live: func(ctx context.Context) (metav1.Object, error) {
			return c.client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, rs *appsv1.ReplicaSet, patch []byte) error {
			got, err := c.client.AppsV1().ReplicaSets(rs.Namespace).Patch(ctx, rs.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			if err == nil {
				c.setWrites.Wrote(keyOf(d), got)
			}
			return err
		},
	}
	if f.sets, err = owner.Claim(ctx, all); err != nil || rolling(d) {
		return f, err
	}
	for _, rs := range f.sets {
		its, err := claim.Controlled[*v1.Pod](c.pods, rs.UID)
		if err != nil {
			return f, err
		}
		for _, p := range its {
			f.running[rs.UID] = f.running[rs.UID] || !pods.IsTerminal(p.Status.Phase)
		}
	}
	return f, nil
}

// carryOut takes the plan's steps. If one fails the others wait for the next plan, and so does the
// status, which would tell of them.
func (c *Controller) carryOut(ctx context.Context, d *appsv1.Deployment, p plan) error {
	if !p.recheck.IsZero() {
		c.loop.AddAfter(keyOf(d), time.Until(p.recheck))
	}
	for _, s := range p.steps {
		goOn, err := c.take(ctx, d, s)
		if err != nil || !goOn {
			return err
		}
		if s.event != nil {
			c.events.Event(d, s.event.kind, s.event.reason, s.event.message)
		}
	}
	if p.status == nil {
		return nil
	}
	return c.putStatus(ctx, p.status)
}

// take takes one step, and reports whether the next one may follow.
func (c *Controller) take(ctx context.Context, d *appsv1.Deployment, s step) (goOn bool, err error) {
	key, sets := keyOf(d), c.client.AppsV1().ReplicaSets(d.Namespace)
	switch {
	case s.create != nil:
		rs, err := sets.Create(ctx, s.create, metav1.CreateOptions{})
		if err != nil {
			return false, c.notCreated(ctx, d, s.create, err)
		}
		c.setWrites.Wrote(key, rs)
	case s.update != nil:
		rs, err := sets.Update(ctx, s.update, metav1.UpdateOptions{})
		if err != nil {
			return false, fmt.Errorf("update replica set %s/%s: %w", d.Namespace, s.update.Name, err)
		}
		c.setWrites.Wrote(key, rs)
	case s.remove != nil:
		// The precondition keeps one that was changed meanwhile: it might have pods again.
		err := sets.Delete(ctx, s.remove.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.remove.UID, ResourceVersion: &s.remove.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("delete replica set %s/%s: %w", d.Namespace, s.remove.Name, err)
		}
		c.setWrites.Deleted(key, s.remove)
	case s.spec != nil:
		got, err := c.client.AppsV1().Deployments(d.Namespace).Update(ctx, s.spec, metav1.UpdateOptions{})
		if err != nil {
			return false, fmt.Errorf("roll back deployment %s/%s: %w", d.Namespace, d.Name, err)
		}
		c.ownWrites.Wrote(key, got)
	}
	return true, nil
}

// notCreated deals with a ReplicaSet that could not be created. If there is one of its name, it is
// either ours, which the informer does not have yet, or that of another template with the same hash:
// then the next one gets another name.
func (c *Controller) notCreated(ctx context.Context, d *appsv1.Deployment, rs *appsv1.ReplicaSet, err error) error {
	switch {
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return err
	case !apierrors.IsAlreadyExists(err):
		next, told := notCreatedStatus(d, rs, err, time.Now())
		c.events.Event(d, v1.EventTypeWarning, replicaSetCreateError, told)
		if next != nil {
			// The first error is the one that counts.
			_ = c.putStatus(ctx, next)
		}
		return fmt.Errorf("create replica set %s/%s: %w", d.Namespace, rs.Name, err)
	}
	live, getErr := c.client.AppsV1().ReplicaSets(rs.Namespace).Get(ctx, rs.Name, metav1.GetOptions{})
	if getErr != nil {
		return fmt.Errorf("look at replica set %s/%s, which exists already: %w", rs.Namespace, rs.Name, getErr)
	}
	if metav1.IsControlledBy(live, d) && sameTemplate(&live.Spec.Template, &d.Spec.Template) {
		c.setWrites.Wrote(keyOf(d), live)
		c.loop.AddAfter(keyOf(d), controller.Patience)
		return nil
	}
	next := d.DeepCopy()
	next.Status.CollisionCount = new(int32(1))
	if n := d.Status.CollisionCount; n != nil {
		*next.Status.CollisionCount += *n
	}
	klog.FromContext(ctx).Info("Another replica set has the name already, trying the next one", "deployment", klog.KObj(d), "replicaSet", rs.Name)
	return c.putStatus(ctx, next)
}

// putStatus writes a Deployment's status and its revision.
func (c *Controller) putStatus(ctx context.Context, d *appsv1.Deployment) error {
	got, err := c.client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update the status of deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	c.ownWrites.Wrote(keyOf(d), got)
	return nil
}
