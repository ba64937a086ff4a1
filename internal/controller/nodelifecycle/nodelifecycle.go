// Package nodelifecycle notices when a node's kubelet has gone silent, and maintains the taints
// that follow from a node's conditions.
//
// A kubelet renews its node's lease. What counts is when a renewal was seen here, not the time
// written into it, so clocks may differ. After GracePeriod without a renewal, the node's conditions
// become Unknown, and its pods become not ready. There is no ticker, only one timer per node, for
// its next deadline.
package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/node/topology"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller"
)

// Options say how long a node may be silent, and how soon its pods are evicted then.
type Options struct {
	GracePeriod  time.Duration // --node-monitor-grace-period
	StartupGrace time.Duration // until its kubelet first writes its status, --node-startup-grace-period
	// Of how many nodes of a zone the pods are evicted in a second; and if UnhealthyZone of its nodes, from 0 to 1, are not
	// ready, in a zone of more than LargeZone nodes. In a smaller one none are evicted then.
	EvictionRate, SecondaryEvictionRate float64
	UnhealthyZone                       float64
	LargeZone                           int
}

// GracePeriod is upstream's default.
const GracePeriod = 50 * time.Second

// Defaults are upstream's.
var Defaults = Options{
	GracePeriod: GracePeriod, StartupGrace: time.Minute,
	EvictionRate: 0.1, SecondaryEvictionRate: 0.01, UnhealthyZone: 0.55, LargeZone: 50,
}

// Controller watches nodes.
type Controller struct {
	client clientset.Interface
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	leases coordinationlisters.LeaseNamespaceLister
	loop   *controller.Loop
	events record.EventRecorder
	grace  Options
	zones  *disruption

	mu   sync.Mutex
	seen map[string]time.Time // node → time of the last sign of life
}

// New returns the controller, with the informers of f.
func New(client clientset.Interface, f informers.SharedInformerFactory, o Options) (*Controller, error) {
	nodes, pods, leases := f.Core().V1().Nodes(), f.Core().V1().Pods(), f.Coordination().V1().Leases()
	c := &Controller{client: client, nodes: nodes.Lister(), pods: pods.Lister(), leases: leases.Lister().Leases(v1.NamespaceNodeLease), grace: o, zones: newDisruption(o), seen: map[string]time.Time{}}
	zones.of.Store(c.zones)
	c.loop = controller.NewLoop("node_lifecycle_controller", c.reconcile)
	if err := c.loop.Watch(nodes.Informer(), c.nodeChanged); err != nil {
		return nil, err
	}
	if err := c.loop.Watch(pods.Informer(), c.podChanged); err != nil {
		return nil, err
	}
	return c, c.loop.Watch(leases.Informer(), func(_, obj any) {
		if l, ok := obj.(*coordinationv1.Lease); ok && l.Namespace == v1.NamespaceNodeLease {
			c.alive(l.Name)
		}
	})
}

// Run watches nodes until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "node-controller")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

func (c *Controller) nodeChanged(old, obj any) {
	node, ok := obj.(*v1.Node)
	if !ok {
		if gone, ok := old.(*v1.Node); ok {
			c.mu.Lock()
			delete(c.seen, gone.Name)
			c.mu.Unlock()
			c.disrupted(c.zones.forget(gone.Name))
		}
		return
	}
	c.disrupted(c.zones.see(node))
	was, _ := old.(*v1.Node)
	if was == nil || !heartbeatsEqual(was, node) && !unknown(node) {
		c.alive(node.Name)
	}
	c.loop.Add(node.Name)
}

// disrupted looks at all nodes again when the last one that was ready is not any more, or the first one is again. In the
// second case nobody could be heard for some time: each node has its whole grace period once more.
func (c *Controller) disrupted(now change) {
	if now == noChange {
		return
	}
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return // an index in memory does not fail
	}
	if len(all) > 1 { // a single node begins so
		klog.Background().Info(map[change]string{
			cutOff: "No node is ready: nothing is evicted, because this control plane may be cut off", back: "A node is ready again: pods of nodes that stay silent are evicted as usual",
		}[now], "nodes", len(all))
	}
	for _, n := range all {
		if now == back {
			c.alive(n.Name)
		}
		c.loop.Add(n.Name)
	}
}

// heartbeatsEqual reports whether the kubelet has not written the node's status between a and b.
func heartbeatsEqual(a, b *v1.Node) bool {
	before, after := ready(a).LastHeartbeatTime, ready(b).LastHeartbeatTime
	return before.Equal(&after)
}

func ready(n *v1.Node) v1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c
		}
	}
	return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionUnknown}
}

// told reports whether the node says anything of its readiness: one whose kubelet has never written its
// status does not.
func told(n *v1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
}

func unknown(n *v1.Node) bool { return ready(n).Status == v1.ConditionUnknown }

// alive records a sign of life.
func (c *Controller) alive(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[node] = time.Now()
}

// patience returns how much longer a node may stay silent. Zero or less means that it has been
// silent for too long.
func (c *Controller) patience(node *v1.Node) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	grace := c.grace.GracePeriod
	if !told(node) {
		grace = c.grace.StartupGrace
	}
	since, ok := c.seen[node.Name]
	if !ok {
		return grace
	}
	return grace - time.Since(since)
}

func (c *Controller) reconcile(ctx context.Context, name string) error {
	defer func(began time.Time) { lookDuration.Observe(time.Since(began).Seconds()) }(time.Now())
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !unknown(node) || !told(node) {
		if left := c.patience(node); left > 0 {
			c.loop.AddAfter(name, left)
		} else if renewed, err := c.renewed(ctx, name); err != nil {
			return err
		} else if renewed {
			c.alive(name)
			c.loop.AddAfter(name, c.patience(node))
		} else if node, err = c.markUnknown(ctx, node); err != nil {
			return err
		}
	}
	err = c.setTaints(ctx, node)
	if unknown(node) {
		err = errors.Join(err, c.markPodsNotReady(ctx, name))
	}
	return err
}

// renewed asks the API server whether a node's lease is another one than the watch has told. Then it is the watch that is
// late, and not the node that is silent (NodeControllerLeaseCircuitBreaker).
func (c *Controller) renewed(ctx context.Context, node string) (bool, error) {
	l, err := c.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // API servers before 1.37 do not allow it
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at the lease of node %s before it counts as silent: %w", node, err)
	}
	told, err := c.leases.Get(node)
	if err != nil {
		return true, nil //nolint:nilerr // the watch has not told of this lease at all
	}
	return told.ResourceVersion != l.ResourceVersion, nil
}

// markUnknown sets every condition of the node to Unknown.
func (c *Controller) markUnknown(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	next := node.DeepCopy()
	now := metav1.Now()
	for _, t := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		i := slices.IndexFunc(next.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == t })
		if i < 0 {
			next.Status.Conditions = append(next.Status.Conditions, v1.NodeCondition{
				Type: t, Status: v1.ConditionUnknown, Reason: "NodeStatusNeverUpdated",
				Message: "Kubelet never posted node status.", LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: now,
			})
			continue
		}
		if cond := &next.Status.Conditions[i]; cond.Status != v1.ConditionUnknown {
			cond.Status, cond.Reason = v1.ConditionUnknown, "NodeStatusUnknown"
			cond.Message, cond.LastTransitionTime = "Kubelet stopped posting node status.", now
		}
	}
	next, err := c.client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("mark node %s as unknown: %w", node.Name, err)
	}
	c.events.Eventf(&v1.ObjectReference{Kind: "Node", Name: node.Name, UID: node.UID}, v1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
	return next, nil
}

// conditionTaint is the taint that a node gets for a condition.
type conditionTaint struct {
	cond   v1.NodeConditionType
	status v1.ConditionStatus
	key    string
}

var conditionTaints = []conditionTaint{
	{v1.NodeReady, v1.ConditionFalse, v1.TaintNodeNotReady},
	{v1.NodeReady, v1.ConditionUnknown, v1.TaintNodeUnreachable},
	{v1.NodeMemoryPressure, v1.ConditionTrue, v1.TaintNodeMemoryPressure},
	{v1.NodeDiskPressure, v1.ConditionTrue, v1.TaintNodeDiskPressure},
	{v1.NodePIDPressure, v1.ConditionTrue, v1.TaintNodePIDPressure},
	{v1.NodeNetworkUnavailable, v1.ConditionTrue, v1.TaintNodeNetworkUnavailable},
}

// setTaints makes the node's taints follow from its conditions and its cordon. It keeps the taints
// of others.
func (c *Controller) setTaints(ctx context.Context, node *v1.Node) error {
	want := wanted(node)
	if slices.ContainsFunc(want, evicting) {
		if ok, again := c.zones.may(node); !ok {
			want = slices.DeleteFunc(want, evicting)
			if again > 0 {
				c.loop.AddAfter(node.Name, again)
			}
		}
	}
	next := node.DeepCopy()
	next.Spec.Taints = slices.DeleteFunc(next.Spec.Taints, func(t v1.Taint) bool {
		return owned(t) && !slices.ContainsFunc(want, func(w v1.Taint) bool { return w.MatchTaint(&t) })
	})
	now := metav1.Now()
	for _, w := range want {
		if !slices.ContainsFunc(next.Spec.Taints, func(t v1.Taint) bool { return t.MatchTaint(&w) }) {
			w.TimeAdded = &now
			next.Spec.Taints = append(next.Spec.Taints, w)
		}
	}
	if equality.Semantic.DeepEqual(node.Spec.Taints, next.Spec.Taints) {
		return nil
	}
	if _, err := c.client.CoreV1().Nodes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("set the taints of node %s: %w", node.Name, err)
	}
	if evicts(next) && !evicts(node) {
		evictions.WithLabelValues(topology.GetZoneKey(node)).Inc()
	}
	return nil
}

// evicts reports whether the node has a taint of ours because of which pods have to go.
func evicts(n *v1.Node) bool { return slices.ContainsFunc(n.Spec.Taints, evicting) }

// evicting reports whether it is such a taint.
func evicting(t v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute && owned(t) }

// owned reports whether this controller alone decides about the taint.
func owned(t v1.Taint) bool {
	switch t.Effect {
	case v1.TaintEffectNoExecute:
		return t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable
	case v1.TaintEffectNoSchedule:
		return t.Key == v1.TaintNodeUnschedulable ||
			slices.ContainsFunc(conditionTaints, func(ct conditionTaint) bool { return ct.key == t.Key })
	}
	return false
}

func wanted(node *v1.Node) []v1.Taint {
	var want []v1.Taint
	add := func(key string, effect v1.TaintEffect) { want = append(want, v1.Taint{Key: key, Effect: effect}) }
	for _, ct := range conditionTaints {
		status := v1.ConditionStatus("")
		for _, c := range node.Status.Conditions {
			if c.Type == ct.cond {
				status = c.Status
			}
		}
		if status != ct.status {
			continue
		}
		add(ct.key, v1.TaintEffectNoSchedule)
		if ct.cond == v1.NodeReady {
			add(ct.key, v1.TaintEffectNoExecute)
		}
	}
	if node.Spec.Unschedulable {
		add(v1.TaintNodeUnschedulable, v1.TaintEffectNoSchedule)
	}
	return want
}
