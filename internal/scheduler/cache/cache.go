// Package cache is the scheduler's view of the cluster: every node with the pods that are bound to
// it, and with those that the scheduler has assumed there while their binding is on its way to the
// API server.
package cache

import (
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	info    *framework.PodInfo
	node    string
	assumed bool
}

// Cache is fed by the informers and by the scheduling cycle; it is safe for
// concurrent use. Snapshots belong to the scheduling cycle alone.
type Cache struct {
	log klog.Logger

	mu    sync.Mutex
	nodes map[string]*framework.NodeInfo
	pods  map[types.UID]*podState
}

// New returns an empty cache.
func New(log klog.Logger) *Cache {
	return &Cache{log: log, nodes: map[string]*framework.NodeInfo{}, pods: map[types.UID]*podState{}}
}

// SetNode adds or replaces a node.
func (c *Cache) SetNode(node *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodeLocked(node.Name).SetNode(node)
}

// RemoveNode forgets a node. Its pods still count until they are removed too.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, ok := c.nodes[name]; ok {
		n.RemoveNode()
		c.dropIfEmptyLocked(name)
	}
}

func (c *Cache) nodeLocked(name string) *framework.NodeInfo {
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
	c.addLocked(uid, &podState{info: info, node: node, assumed: true})
	return nil
}

// Forget undoes Assume. A pod that was bound meanwhile stays.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.pods[uid]; ok && s.assumed {
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
	if err := c.nodes[s.node].RemovePod(c.log, s.info.GetPod()); err != nil {
		c.log.Error(err, "The scheduler's cache is inconsistent", "pod", klog.KObj(s.info.GetPod()))
	}
	c.dropIfEmptyLocked(s.node)
}

// Snapshot is the cluster as one attempt sees it: nodes that exist, ordered by name.
type Snapshot struct {
	byName map[string]*framework.NodeInfo
	list   []fwk.NodeInfo
}

// Update updates the snapshot. It copies only nodes that have changed.
func (c *Cache) Update(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.byName == nil {
		s.byName = map[string]*framework.NodeInfo{}
	}
	changed := false
	for name, n := range c.nodes {
		old, ok := s.byName[name]
		if n.Node() == nil || ok && old.GetGeneration() == n.GetGeneration() {
			continue
		}
		s.byName[name] = n.Clone()
		changed = true
	}
	for name := range s.byName {
		if n, ok := c.nodes[name]; !ok || n.Node() == nil {
			delete(s.byName, name)
			changed = true
		}
	}
	if changed {
		s.relist()
	}
}

func (s *Snapshot) relist() {
	s.list = make([]fwk.NodeInfo, 0, len(s.byName))
	for _, n := range s.byName {
		s.list = append(s.list, n)
	}
	slices.SortFunc(s.list, func(a, b fwk.NodeInfo) int {
		switch {
		case a.Node().Name < b.Node().Name:
			return -1
		case a.Node().Name > b.Node().Name:
			return 1
		}
		return 0
	})
}

// Nodes returns all nodes. The caller must not change the slice.
func (s *Snapshot) Nodes() []fwk.NodeInfo { return s.list }

// Get returns the node, or nil.
func (s *Snapshot) Get(name string) fwk.NodeInfo {
	if n, ok := s.byName[name]; ok {
		return n
	}
	return nil
}
