// Package tainteviction deletes pods from nodes with a NoExecute taint that they do not tolerate,
// at once or when the time for which they tolerate it is over.
package tainteviction

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
	"wherry.dev/internal/controller/disrupt"
)

// What an evicted pod's condition DisruptionTarget says.
const reason, message = "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"

// Controller evicts pods.
type Controller struct {
	client clientset.Interface
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	loop   *controller.Loop
	events record.EventRecorder
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory) (*Controller, error) {
	all, nodes := f.Core().V1().Pods(), f.Core().V1().Nodes()
	c := &Controller{client: client, pods: all.Lister(), nodes: nodes.Lister()}
	c.loop = controller.NewLoop("noexec_taint_pod", c.reconcile)
	if err := c.loop.Watch(nodes.Informer(), c.nodeChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(all.Informer(), func(old, obj any) {
		pod, ok := obj.(*v1.Pod)
		was, _ := old.(*v1.Pod)
		if ok && pod.Spec.NodeName != "" && (was == nil || was.Spec.NodeName == "" || was.Generation != pod.Generation) {
			c.loop.Add(cache.MetaObjectToName(pod).String())
		}
	})
}

// Run evicts pods until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "taint-eviction-controller")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

// nodeChanged requests a reconciliation of every pod on a node whose taints changed.
func (c *Controller) nodeChanged(old, obj any) {
	node, ok := obj.(*v1.Node)
	was, _ := old.(*v1.Node)
	if !ok || was != nil && equality.Semantic.DeepEqual(was.Spec.Taints, node.Spec.Taints) {
		return
	}
	all, err := c.pods.List(labels.Everything())
	if err != nil {
		return // cannot happen: a lister fails only for a selector that does not parse
	}
	for _, p := range all {
		if p.Spec.NodeName == node.Name {
			c.loop.Add(cache.MetaObjectToName(p).String())
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" {
		return err
	}
	node, err := c.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	at, evict := evictionTime(ctx, pod, node.Spec.Taints)
	if !evict {
		return nil
	}
	if wait := time.Until(at); wait > 0 {
		c.loop.AddAfter(key, wait)
		return nil
	}
	return c.evict(ctx, pod)
}

// evictionTime returns the earliest time at which a NoExecute taint is no longer tolerated. evict
// is false if the pod tolerates all of them for ever.
func evictionTime(ctx context.Context, pod *v1.Pod, taints []v1.Taint) (at time.Time, evict bool) {
	for i := range taints {
		t := &taints[i]
		if t.Effect != v1.TaintEffectNoExecute {
			continue
		}
		seconds, forever := tolerated(ctx, pod, t)
		if forever {
			continue
		}
		var end time.Time // a taint without a time has always been there
		if t.TimeAdded != nil {
			end = t.TimeAdded.Add(time.Duration(seconds) * time.Second)
		}
		if !evict || end.Before(at) {
			at, evict = end, true
		}
	}
	return at, evict
}

// tolerated returns for how many seconds the pod tolerates a taint: the smallest number of all
// matching tolerations, or 0 if none matches.
func tolerated(ctx context.Context, pod *v1.Pod, taint *v1.Taint) (seconds int64, forever bool) {
	matched := false
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		if !t.ToleratesTaint(klog.FromContext(ctx), taint, true) {
			continue
		}
		s := t.TolerationSeconds
		switch {
		case s == nil:
			if !matched {
				forever = true
			}
		case !matched || forever || *s < seconds:
			seconds, forever = max(0, *s), false
		}
		matched = true
	}
	return seconds, matched && forever
}

// evict records the reason in the pod's status, then deletes the pod.
func (c *Controller) evict(ctx context.Context, pod *v1.Pod) error {
	// The taint may have been removed while the cache was behind.
	node, err := c.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	at, evict := evictionTime(ctx, pod, node.Spec.Taints)
	if !evict || time.Now().Before(at) {
		return nil
	}
	gone, err := disrupt.Delete(ctx, c.client, c.events, pod, disrupt.Cause{
		Reason: reason, Message: message,
		Event: "TaintManagerEviction", Note: fmt.Sprintf("Marking for deletion Pod %s/%s", pod.Namespace, pod.Name),
	})
	if gone {
		deleted(at)
	}
	return err
}
