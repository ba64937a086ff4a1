// Package nodeipam gives every node a range of addresses for its pods (spec.podCIDRs), from the cluster's networks of
// pods. It does what upstream's node-ipam-controller does with its range allocator.
//
// No two nodes get ranges that overlap, whoever wrote those that are there. What a node has once it keeps: the API does
// not let it change. A range is free again when its node is gone.
package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/nodes"
	"wherry.dev/internal/controller"
)

// Upstream's sizes of ranges.
const (
	Bits4 = 24
	Bits6 = 64
)

// Options are the controller's settings.
type Options struct {
	// Networks are the cluster's networks of pods: one, or one of each IP family. Without any the controller does not run.
	Networks []netip.Prefix
	// Bits4 and Bits6 are the sizes of nodes' ranges, as lengths of prefixes.
	Bits4, Bits6 int
	// Reserved are networks from which nothing is given, such as those of services.
	Reserved []netip.Prefix
}

func (o *Options) bits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return o.Bits4
	}
	return o.Bits6
}

// Validate returns what is wrong, by flag.
func (o *Options) Validate() error {
	if len(o.Networks) > 2 || len(o.Networks) == 2 && o.Networks[0].Addr().Is4() == o.Networks[1].Addr().Is4() {
		return errors.New("--cluster-cidr must be one network, or two of different IP families")
	}
	for _, p := range o.Networks {
		if _, err := newNetwork(p, o.bits(p)); err != nil {
			return fmt.Errorf("--cluster-cidr: %w; see --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6", err)
		}
	}
	return nil
}

// Controller gives nodes their ranges. Create one with New.
type Controller struct {
	client clientset.Interface
	nodes  corelisters.NodeLister
	events record.EventRecorder
	loop   *controller.Loop

	mu       sync.Mutex
	networks []*network
	held     map[string]holding // by the node's name
	waiting  map[string]bool    // nodes for which there was no range
	// before has what nodes had that are gone. One that was only deleted registers again at once, and its pods still
	// have addresses of that range.
	before map[string][]netip.Prefix
}

// holding is what a node has. The informer may know nothing of it yet.
type holding struct {
	uid    types.UID
	ranges []netip.Prefix
}

// New returns the controller, with the informers of f. The options must be valid.
func New(client clientset.Interface, f informers.SharedInformerFactory, o Options) (*Controller, error) {
	nodes := f.Core().V1().Nodes()
	c := &Controller{client: client, nodes: nodes.Lister(), held: map[string]holding{}, waiting: map[string]bool{}, before: map[string][]netip.Prefix{}}
	for _, p := range o.Networks {
		n, err := newNetwork(p, o.bits(p))
		if err != nil {
			return nil, err
		}
		for _, r := range o.Reserved {
			n.use(r, 1)
		}
		c.networks = append(c.networks, n)
	}
	c.loop = controller.NewLoop("node_ipam", c.reconcile)
	return c, c.loop.Watch(nodes.Informer(), c.changed)
}

// Run gives ranges until ctx ends. It begins once it has seen what all nodes have.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := controller.Recorder(ctx, c.client, "cidrAllocator")
	defer stop()
	c.events = events
	return c.loop.Run(ctx)
}

// changed notes what nodes have, and what those that are gone had.
func (c *Controller) changed(old, obj any) {
	n, ok := obj.(*v1.Node)
	if !ok {
		if n, ok = old.(*v1.Node); ok {
			c.gone(n)
		}
		return
	}
	if ranges := nodes.Ranges(n); len(ranges) > 0 {
		c.hold(n, ranges)
		return
	}
	c.loop.Add(n.Name)
}

// hold notes that a node has ranges.
func (c *Controller) hold(n *v1.Node, ranges []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	had, known := c.held[n.Name]
	if known && had.uid == n.UID && slices.Equal(had.ranges, ranges) {
		return
	}
	c.count(had.ranges, -1)
	if c.takenLocked(ranges) {
		klog.Background().Error(nil, "A node has addresses for its pods that another one has, too; delete the one that came later, "+
			"and it gets others when it registers again", "node", n.Name, "ranges", ranges)
	}
	c.held[n.Name] = holding{n.UID, ranges}
	c.count(ranges, 1)
}

func (c *Controller) takenLocked(ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool {
		return slices.ContainsFunc(c.networks, func(n *network) bool { return n.taken(p) })
	})
}

func (c *Controller) count(ranges []netip.Prefix, change int) {
	for _, p := range ranges {
		for _, n := range c.networks {
			n.use(p, change)
		}
	}
	report(c.networks)
}

// gone frees what a node had, for those that wait.
func (c *Controller) gone(n *v1.Node) {
	c.mu.Lock()
	had, known := c.held[n.Name]
	if known && had.uid == n.UID {
		c.forget(n.Name, had)
	}
	delete(c.waiting, n.Name)
	waiting := c.waiting
	c.waiting = map[string]bool{}
	c.mu.Unlock()
	for name := range waiting {
		c.loop.Add(name)
	}
}

// mostBefore bounds how many nodes that are gone are remembered.
const mostBefore = 10_000

// forget frees what a node had that is gone.
func (c *Controller) forget(name string, had holding) {
	c.count(had.ranges, -1)
	delete(c.held, name)
	if len(c.before) >= mostBefore {
		clear(c.before)
	}
	c.before[name] = had.ranges
}

// choose takes a range of each network for a node; nil if it has what it needs.
func (c *Controller) choose(n *v1.Node) ([]netip.Prefix, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if had, known := c.held[n.Name]; known {
		if had.uid == n.UID {
			return had.ranges, nil // chosen before: the write failed, or the informer is behind
		}
		c.forget(n.Name, had) // an earlier node of this name, whose end the informer has not told yet
	}
	if again := c.before[n.Name]; len(again) == len(c.networks) && !c.takenLocked(again) {
		delete(c.before, n.Name)
		c.count(again, 1)
		c.held[n.Name] = holding{n.UID, again}
		return again, nil
	}
	var ranges []netip.Prefix
	for _, net := range c.networks {
		p, err := net.take()
		if err != nil {
			c.count(ranges, -1)
			c.waiting[n.Name] = true
			return nil, err
		}
		ranges = append(ranges, p)
	}
	c.held[n.Name] = holding{n.UID, ranges}
	report(c.networks)
	return ranges, nil
}

func (c *Controller) reconcile(ctx context.Context, name string) error {
	n, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) || err == nil && (len(n.Spec.PodCIDRs) > 0 || n.DeletionTimestamp != nil) {
		return nil
	}
	if err != nil {
		return err
	}
	ref := &v1.ObjectReference{Kind: "Node", Name: n.Name, UID: types.UID(n.Name)}
	ranges, err := c.choose(n)
	if errors.Is(err, errNoRange) {
		// It is tried again when a node goes.
		klog.FromContext(ctx).Error(err, "No addresses for the pods of a node: start the server with a larger --cluster-cidr, or with smaller ranges", "node", name)
		c.events.Eventf(ref, v1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable", name)
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.write(ctx, n, ranges); err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // another node by now: the informer will tell
		}
		return fmt.Errorf("give node %s the addresses %v for its pods: %w", name, ranges, err)
	}
	return nil
}

// write gives a node its ranges, unless it is another one of that name by now.
func (c *Controller) write(ctx context.Context, n *v1.Node, ranges []netip.Prefix) error {
	texts := make([]string, len(ranges))
	for i, p := range ranges {
		texts[i] = p.String()
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID},
		"spec":     map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsInvalid(err) {
		// Somebody else gave it a range in the meantime. What it has now comes with the next event.
		if now, gerr := c.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{}); gerr == nil && len(now.Spec.PodCIDRs) > 0 {
			c.hold(now, nodes.Ranges(now))
			return nil
		}
	}
	if err == nil {
		klog.FromContext(ctx).Info("The node has addresses for its pods", "node", n.Name, "podCIDRs", strings.Join(texts, ","))
	}
	return err
}
