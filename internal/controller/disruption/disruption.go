// Package disruption counts healthy pods for PodDisruptionBudgets: their status says how many more pods
// may be evicted. The API server's eviction endpoint asks it, and notes each eviction that it grants in
// the same status. Because both write it with the version that they have read, none of them loses what
// the other one wrote.
//
// It takes back the condition DisruptionTarget from pods that were to be disrupted, and were not.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
)

// Controller writes the status of budgets. Create one with New.
type Controller struct {
	client  clientset.Interface
	scaler  scaler
	budgets policylisters.PodDisruptionBudgetLister
	pods    corelisters.PodLister
	events  record.EventRecorder

	// loop reconciles budgets, stale pods that were to be disrupted.
	loop, stale *controller.Loop
}

// New returns the controller, with the informers of f. other is asked for the scale of controllers that
// f does not know.
func New(client clientset.Interface, f informers.SharedInformerFactory, other ScaleOf) (*Controller, error) {
	budgets, pods := f.Policy().V1().PodDisruptionBudgets(), f.Core().V1().Pods()
	c := &Controller{client: client, scaler: newScaler(f, other), budgets: budgets.Lister(), pods: pods.Lister()}
	c.loop = controller.NewLoop("disruption", c.sync)
	c.stale = controller.NewLoop("stale_pod_disruption", c.takeBack)
	err := errors.Join(
		c.loop.Watch(budgets.Informer(), c.loop.AddObject),
		c.loop.Watch(pods.Informer(), c.podChanged),
		c.stale.Watch(pods.Informer(), c.mayBeStale),
	)
	for _, informer := range []cache.SharedIndexInformer{
		f.Apps().V1().ReplicaSets().Informer(), f.Apps().V1().Deployments().Informer(),
		f.Apps().V1().StatefulSets().Informer(), f.Core().V1().ReplicationControllers().Informer(),
	} {
		err = errors.Join(err, c.loop.Watch(informer, c.scaleChanged))
	}
	return c, err
}

// Run counts until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "controllermanager")
	defer stop()
	c.events = events
	var running sync.WaitGroup
	var err error
	running.Go(func() { err = c.stale.Run(ctx) })
	budgets := c.loop.Run(ctx)
	running.Wait()
	return errors.Join(err, budgets)
}

func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// podChanged wakes the budgets that select the pod, or did.
func (c *Controller) podChanged(old, obj any) {
	for _, item := range []any{old, obj} {
		if pod, ok := item.(*v1.Pod); ok {
			c.wake(pod.Namespace, func(b *policyv1.PodDisruptionBudget) bool { return selects(b, pod) })
		}
	}
}

// scaleChanged wakes the budgets that may go by the number of replicas of a controller.
func (c *Controller) scaleChanged(old, obj any) {
	if replicasOf(old) == replicasOf(obj) {
		return
	}
	for _, item := range []any{obj, old} {
		if o, ok := item.(metav1.Object); ok {
			c.wake(o.GetNamespace(), needsScale)
			return
		}
	}
}

func (c *Controller) wake(namespace string, concerned func(*policyv1.PodDisruptionBudget) bool) {
	list, err := c.budgets.PodDisruptionBudgets(namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, b := range list {
		if concerned(b) {
			c.loop.Add(keyOf(b))
		}
	}
}

// selects reports whether a budget is for a pod. A selector that is invalid selects nothing.
func selects(b *policyv1.PodDisruptionBudget, pod *v1.Pod) bool {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && s.Matches(labels.Set(pod.Labels))
}

func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	b, err := c.budgets.PodDisruptionBudgets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	p, err := c.plan(ctx, b)
	if err != nil {
		return c.failSafe(ctx, b, err)
	}
	for _, e := range p.events {
		if e.pod != nil {
			c.events.Event(e.pod, e.kind, e.reason, e.message)
		} else {
			c.events.Event(b, e.kind, e.reason, e.message)
		}
	}
	if p.recheck > 0 {
		c.loop.AddAfter(key, p.recheck)
	}
	return c.putStatus(ctx, p.status)
}

// plan observes and decides.
func (c *Controller) plan(ctx context.Context, b *policyv1.PodDisruptionBudget) (plan, error) {
	f := facts{budget: b, now: time.Now()}
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err == nil {
		f.pods, err = c.pods.Pods(b.Namespace).List(s)
	}
	if err != nil {
		c.events.Eventf(b, v1.EventTypeWarning, "NoPods", "Failed to get pods: %v", err)
		return plan{}, hopeless{err}
	}
	c.warn(b, f.pods)
	if needsScale(b) {
		if f.scales, err = c.scaler.of(ctx, f.pods); err != nil {
			return plan{}, err
		}
	}
	p, err := planFor(f)
	if err != nil {
		err = hopeless{err}
	}
	return p, err
}

// warn tells of pods that several budgets select, on behalf of the first of these.
func (c *Controller) warn(b *policyv1.PodDisruptionBudget, its []*v1.Pod) {
	others, err := c.budgets.PodDisruptionBudgets(b.Namespace).List(labels.Everything())
	if err != nil || len(others) < 2 {
		return
	}
	slices.SortFunc(others, func(x, y *policyv1.PodDisruptionBudget) int { return strings.Compare(x.Name, y.Name) })
	for _, pod := range its {
		mine := slices.Collect(func(yield func(string) bool) {
			for _, o := range others {
				if selects(o, pod) && !yield(o.Name) {
					return
				}
			}
		})
		if len(mine) > 1 && mine[0] == b.Name {
			c.events.Eventf(pod, v1.EventTypeWarning, "MultiplePodDisruptionBudgets",
				"Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", pod.Namespace, pod.Name, b.Name)
		}
	}
}

// failSafe allows nothing as long as nothing is known.
func (c *Controller) failSafe(ctx context.Context, b *policyv1.PodDisruptionBudget, why error) error {
	c.events.Eventf(b, v1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", why)
	if err := c.putStatus(ctx, failed(b, why)); err != nil {
		return errors.Join(why, err)
	}
	if errors.As(why, &hopeless{}) {
		klog.FromContext(ctx).Info("A disruption budget cannot be counted", "podDisruptionBudget", klog.KObj(b), "err", why)
		return nil
	}
	return why
}

// putStatus writes a budget's status, unless it is nil.
func (c *Controller) putStatus(ctx context.Context, b *policyv1.PodDisruptionBudget) error {
	if b == nil {
		return nil
	}
	_, err := c.client.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, b, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update the status of pod disruption budget %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}

func (c *Controller) mayBeStale(_, obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	if wait, ever := staleIn(pod, time.Now()); ever {
		c.stale.AddAfter(keyOf(pod), wait)
	}
}

// takeBack says of a pod that it will not be disrupted, if the time for that is over.
func (c *Controller) takeBack(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	wait, ever := staleIn(pod, time.Now())
	switch {
	case !ever:
		return nil
	case wait > 0:
		c.stale.AddAfter(key, wait)
		return nil
	}
	pod = pod.DeepCopy()
	*pods.FindCondition(&pod.Status, v1.DisruptionTarget) = v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionFalse, ObservedGeneration: pod.Generation, LastTransitionTime: metav1.Now(),
	}
	_, err = c.client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reset the condition DisruptionTarget of pod %s: %w", key, err)
	}
	return nil
}
