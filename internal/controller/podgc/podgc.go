// Package podgc removes pods that nobody else removes: those bound to a node that is gone, those deleted on a node that
// somebody has put out of service, those deleted before they were ever scheduled, and the oldest finished ones when
// there are too many.
package podgc

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"wherry.dev/internal/api/nodes"
	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/controller"
)

const (
	// Quarantine is how long a node must be missing before its pods are removed (upstream's value).
	Quarantine = 40 * time.Second
	// TerminatedThreshold is how many finished pods are kept (upstream's default of
	// --terminated-pod-gc-threshold).
	TerminatedThreshold = 12500

	// key is the only key: every reconciliation looks at all pods.
	key = "pods"
)

// Controller removes pods.
type Controller struct {
	client    clientset.Interface
	pods      corelisters.PodLister
	nodes     corelisters.NodeLister
	loop      *controller.Loop
	threshold int

	mu      sync.Mutex
	missing map[string]time.Time // node → since when it has been missing
}

// New returns the controller, with the informers of f. Of finished pods it keeps that many; all if it is not positive.
func New(client clientset.Interface, f informers.SharedInformerFactory, threshold int) (*Controller, error) {
	all, nodes := f.Core().V1().Pods(), f.Core().V1().Nodes()
	c := &Controller{client: client, pods: all.Lister(), nodes: nodes.Lister(), threshold: threshold, missing: map[string]time.Time{}}
	c.loop = controller.NewLoop("orphaned_pods_nodes", c.reconcile)
	if err := c.loop.Watch(nodes.Informer(), func(old, obj any) {
		was, _ := old.(*v1.Node)
		is, _ := obj.(*v1.Node)
		if was == nil || is == nil || outOfService(is) && !outOfService(was) {
			c.loop.Add(key)
		}
	}); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(all.Informer(), func(old, obj any) {
		pod, ok := obj.(*v1.Pod)
		was, _ := old.(*v1.Pod)
		if ok && (was == nil || pods.IsTerminal(pod.Status.Phase) && !pods.IsTerminal(was.Status.Phase) || c.nobodyEnds(pod)) {
			c.loop.Add(key)
		}
	})
}

// Run removes pods until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, _ string) error {
	all, err := c.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	gone, wait := c.goneNodes(all, time.Now())
	if wait > 0 {
		c.loop.AddAfter(key, wait)
	}
	var failure error // one of them: usually they are all alike
	var done []*v1.Pod
	for _, p := range all {
		var err error
		switch {
		case p.Spec.NodeName == "" && p.DeletionTimestamp != nil:
			err = c.remove(ctx, p, unscheduled, "")
		case c.nobodyEnds(p):
			err = c.remove(ctx, p, lost, "")
		case gone[p.Spec.NodeName]:
			err = c.removeOrphan(ctx, p)
		case pods.IsTerminal(p.Status.Phase):
			done = append(done, p)
		}
		failure = oneOf(failure, err)
	}
	return oneOf(failure, c.trim(ctx, done))
}

// nobodyEnds reports whether a pod is being deleted, and there is no kubelet that could end it: it has no node, or one
// that is out of service.
func (c *Controller) nobodyEnds(p *v1.Pod) bool {
	if p.DeletionTimestamp == nil || p.Spec.NodeName == "" {
		return p.DeletionTimestamp != nil
	}
	node, err := c.nodes.Get(p.Spec.NodeName)
	return err == nil && outOfService(node)
}

// outOfService reports whether a node is not ready, and somebody has said that nothing runs there any more (KEP-2268).
func outOfService(n *v1.Node) bool {
	taint := func(t v1.Taint) bool { return t.Key == v1.TaintNodeOutOfService }
	return !nodes.IsReady(n) && slices.ContainsFunc(n.Spec.Taints, taint)
}

// oneOf returns the first of two errors, if it is one. A pod that cannot be removed is in nobody's way.
func oneOf(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// goneNodes returns the nodes that pods are bound to and that have been missing for long enough,
// and after how long to look again for the others.
func (c *Controller) goneNodes(pods []*v1.Pod, now time.Time) (gone map[string]bool, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone, seen := map[string]bool{}, map[string]bool{}
	for _, p := range pods {
		node := p.Spec.NodeName
		if node == "" || seen[node] {
			continue
		}
		seen[node] = true
		if _, err := c.nodes.Get(node); !apierrors.IsNotFound(err) {
			delete(c.missing, node)
			continue
		}
		since, ok := c.missing[node]
		if !ok {
			since = now
			c.missing[node] = now
		}
		if left := Quarantine - now.Sub(since); left > 0 {
			wait = max(wait, left)
		} else {
			gone[node] = true
		}
	}
	for node := range c.missing {
		if !seen[node] {
			delete(c.missing, node)
		}
	}
	return gone, wait
}

// removeOrphan removes a pod of a missing node. First it asks the API server itself for the node.
func (c *Controller) removeOrphan(ctx context.Context, p *v1.Pod) error {
	_, err := c.client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	return c.remove(ctx, p, orphaned, "PodGC: node no longer exists")
}

// remove removes a pod. It marks an unfinished one that had a node as failed first, so that its owner learns why. A
// conflict is an error, which a Loop retries in silence: there is another pod of its name, which the
// informer will tell, or a webhook does not want the deletion now.
func (c *Controller) remove(ctx context.Context, p *v1.Pod, reason, why string) error {
	removed.WithLabelValues(p.Namespace, reason).Inc()
	err := c.delete(ctx, p, reason, why)
	if err != nil {
		removeErrors.WithLabelValues(p.Namespace, reason).Inc()
	}
	return err
}

func (c *Controller) delete(ctx context.Context, p *v1.Pod, reason, why string) error {
	if (why != "" || reason == lost) && !pods.IsTerminal(p.Status.Phase) {
		status := map[string]any{"phase": v1.PodFailed}
		if why != "" {
			status["conditions"] = []v1.PodCondition{{
				Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "DeletionByPodGC", Message: why,
				ObservedGeneration: p.Generation, LastTransitionTime: metav1.Now(),
			}}
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
		if err != nil {
			return err
		}
		_, err = c.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("mark pod %s/%s as failed: %w", p.Namespace, p.Name, err)
		}
	}
	err := c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// trim removes the oldest finished pods above the threshold.
func (c *Controller) trim(ctx context.Context, done []*v1.Pod) error {
	if c.threshold <= 0 || len(done) <= c.threshold {
		return nil
	}
	slices.SortFunc(done, func(a, b *v1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	var failure error
	for _, p := range done[:len(done)-c.threshold] {
		failure = oneOf(failure, c.remove(ctx, p, terminated, ""))
	}
	return failure
}
