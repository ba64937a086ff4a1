// Package cache is the scheduler's view of the cluster: every node with the pods that are bound to
// it, and with those that the scheduler has assumed there while their binding is on its way to the
// API server.
package cache

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// podState is where a pod is held to be.
//
//	        Assume              AddPod (watch)
//	(none) ───────▶ assumed ──────────────────▶ bound ──RemovePod──▶ (none)
//	   ▲               │ Forget (bind failed)     ▲
//	   └───────────────┘                          └── AddPod without Assume
type podState struct {
	info *framework.PodInfo
	node string
}

// Cache is fed by the informers and by the scheduling cycle; it is safe for
// concurrent use. Its one snapshot belongs to the scheduling cycle.
type Cache struct {
	log klog.Logger

	mu    sync.Mutex
	nodes map[string]*framework.NodeInfo
	pods  map[types.UID]*podState
	// assumed are those of pods that are not bound yet as far as is known: they are few.
	assumed sets.Set[types.UID]
	images  map[string]int   // how many nodes have an image, by its name
	counts  uint64           // grows with every change of images
	dirty   sets.Set[string] // the nodes that have changed since the last Update
}

// New returns an empty cache.
func New(log klog.Logger) *Cache {
	return &Cache{
		log: log, nodes: map[string]*framework.NodeInfo{}, pods: map[types.UID]*podState{}, assumed: sets.New[types.UID](),
		images: map[string]int{}, dirty: sets.New[string](),
	}
}

// SetNode adds or replaces a node.
func (c *Cache) SetNode(node *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodeLocked(node.Name)
	before, same := n.GetImageStates(), n.SameImages(node)
	n.SetNode(node)
	if !same {
		c.countImagesLocked(before, n.GetImageStates())
	}
}

// countImagesLocked counts a node's images after they have changed.
func (c *Cache) countImagesLocked(before, after map[string]*fwk.ImageStateSummary) {
	for name := range after {
		c.images[name]++
	}
	for name := range before {
		if c.images[name]--; c.images[name] == 0 {
			delete(c.images, name)
		}
	}
	c.counts++
}

// RemoveNode forgets a node. Its pods still count until they are removed too.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, ok := c.nodes[name]; ok {
		c.countImagesLocked(n.GetImageStates(), nil)
		n.RemoveNode()
		c.dirty.Insert(name)
		c.dropIfEmptyLocked(name)
	}
}

// nodeLocked returns a node in order to change it.
func (c *Cache) nodeLocked(name string) *framework.NodeInfo {
	c.dirty.Insert(name)
	n, ok := c.nodes[name]
	if !ok {
		n = framework.NewNodeInfo(nil)
		c.nodes[name] = n
	}
	return n
}

func (c *Cache) dropIfEmptyLocked(name string) {
	if n := c.nodes[name]; n != nil && n.Node() == nil && len(n.GetPods()) == 0 {
		delete(c.nodes, name)
	}
}

// SetPod records a pod that is bound to pod.Spec.NodeName, and confirms an assumed one.
func (c *Cache) SetPod(pod *v1.Pod) error {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(pod.UID)
	c.addLocked(pod.UID, &podState{info: info, node: pod.Spec.NodeName})
	return nil
}

// RemovePod forgets a pod.
func (c *Cache) RemovePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(uid)
}

// Assume puts a pod on a node before it is bound, so that for the next pod the node's resources are
// taken already.
func (c *Cache) Assume(info *framework.PodInfo, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	uid := info.GetPod().UID
	if s, ok := c.pods[uid]; ok {
		return fmt.Errorf("pod %s/%s is already on node %s", info.GetPod().Namespace, info.GetPod().Name, s.node)
	}
	c.addLocked(uid, &podState{info: info, node: node})
	c.assumed.Insert(uid)
	return nil
}

// Has reports whether the pod is on a node, or is assumed to be.
func (c *Cache) Has(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[uid] != nil
}

// Forget undoes Assume. A pod that was bound meanwhile stays.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.assumed.Has(uid) {
		c.removeLocked(uid)
	}
}

func (c *Cache) addLocked(uid types.UID, s *podState) {
	c.pods[uid] = s
	c.nodeLocked(s.node).AddPodInfo(s.info)
}

func (c *Cache) removeLocked(uid types.UID) {
	s, ok := c.pods[uid]
	if !ok {
		return
	}
	delete(c.pods, uid)
	c.assumed.Delete(uid)
	if err := c.nodeLocked(s.node).RemovePod(c.log, s.info.GetPod()); err != nil {
		c.log.Error(err, "The scheduler's cache is inconsistent", "pod", klog.KObj(s.info.GetPod()))
	}
	c.dropIfEmptyLocked(s.node)
}

// Taken returns what a node has, and what the pods take that are bound there and stay: others could be preempted, and
// bindings may fail. It reports false for a node that is not known.
func (c *Cache) Taken(node string, stays func(*v1.Pod) bool) (has, taken fwk.Resource, pods int, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[node]
	if !ok || n.Node() == nil {
		return nil, nil, 0, false
	}
	taken, pods = n.RequestedBy(func(pod *v1.Pod) bool { return stays(pod) && !c.assumed.Has(pod.UID) })
	return n.GetAllocatable(), taken, pods, true
}

// Sizes returns how many nodes and pods there are, and how many of the pods are assumed.
func (c *Cache) Sizes() (nodes, pods, assumed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes), len(c.pods), c.assumed.Len()
}

// Update updates the snapshot, which must not be in mutation. It copies only the nodes that have changed since the
// last time.
func (c *Cache) Update(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.dirty {
		if n, ok := c.nodes[name]; ok && n.Node() != nil {
			n.CountImages(c.counts, c.images)
			s.set(name, n.Clone())
		} else {
			s.remove(name)
		}
	}
	clear(c.dirty)
	s.settle()
}
