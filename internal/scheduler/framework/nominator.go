package framework

import (
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Nominator knows the pods that have no node yet and for which room was made on one, by preemption
// for instance (status.nominatedNodeName).
type Nominator struct {
	// known reports whether the pod still waits for a node: who was deleted or bound in the meantime is
	// not nominated any more.
	known func(types.UID) bool

	mu      sync.RWMutex
	byNode  map[string]nominations
	nodeOf  map[types.UID]string
	changes int64
	count   atomic.Int64 // of nodes
}

// nominations are the pods that are nominated for a node. The slice is replaced or appended to, and not changed.
type nominations struct {
	pods    []fwk.PodInfo
	version int64 // another one, above 0, with every change
}

var _ fwk.PodNominator = (*Nominator)(nil)

// NewNominator returns an empty one.
func NewNominator(known func(types.UID) bool) *Nominator {
	return &Nominator{known: known, byNode: map[string]nominations{}, nodeOf: map[types.UID]string{}}
}

// AddNominatedPod records the pod's nomination: the one of info if it overrides, or the one in the
// pod's status.
func (n *Nominator) AddNominatedPod(_ klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addLocked(pod, info)
}

func (n *Nominator) addLocked(pod fwk.PodInfo, info *fwk.NominatingInfo) {
	p := pod.GetPod()
	n.deleteLocked(p.UID)
	node := p.Status.NominatedNodeName
	if info.Mode() == fwk.ModeOverride {
		node = info.NominatedNodeName
	}
	if node == "" || !n.known(p.UID) {
		return
	}
	n.nodeOf[p.UID] = node
	n.setLocked(node, append(n.byNode[node].pods, pod))
}

func (n *Nominator) setLocked(node string, pods []fwk.PodInfo) {
	n.changes++
	n.byNode[node] = nominations{pods, n.changes}
	if len(pods) == 0 {
		delete(n.byNode, node)
	}
	n.count.Store(int64(len(n.byNode)))
}

// DeleteNominatedPodIfExists forgets a nomination.
func (n *Nominator) DeleteNominatedPodIfExists(pod *v1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deleteLocked(pod.UID)
}

func (n *Nominator) deleteLocked(uid types.UID) {
	node, ok := n.nodeOf[uid]
	if !ok {
		return
	}
	delete(n.nodeOf, uid)
	n.setLocked(node, slices.DeleteFunc(slices.Clone(n.byNode[node].pods), func(p fwk.PodInfo) bool { return p.GetPod().UID == uid }))
}

// UpdateNominatedPod replaces a pod by its new version. A nomination that is not in the API yet
// stays: whoever made it writes it there.
func (n *Nominator) UpdateNominatedPod(_ klog.Logger, old *v1.Pod, pod fwk.PodInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var info *fwk.NominatingInfo
	if old.Status.NominatedNodeName == "" && pod.GetPod().Status.NominatedNodeName == "" {
		if node, ok := n.nodeOf[old.UID]; ok {
			info = &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node}
		}
	}
	n.addLocked(pod, info)
}

// Any reports whether any node has nominated pods.
func (n *Nominator) Any() bool { return n.count.Load() > 0 }

// NominatedPodsForNode returns the pods for which there is to be room on the node. The caller must
// not change the slice.
func (n *Nominator) NominatedPodsForNode(node string) []fwk.PodInfo { return n.forNode(node).pods }

func (n *Nominator) forNode(node string) nominations {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.byNode[node]
}

// before returns the other pods that are nominated for the node and have the pod's priority or a higher one. version
// tells them apart from those of other times, for all pods of this priority: 0 if there are none, and -1 if nothing does.
// It is asked about all nodes, and looks at one only if anybody is nominated at all.
func (n *Nominator) before(pod *v1.Pod, node *v1.Node) (before []fwk.PodInfo, version int64) {
	if !n.Any() {
		return nil, 0
	}
	there := n.forNode(node.Name)
	version = there.version
	for _, other := range there.pods {
		switch {
		case other.GetPod().UID == pod.UID:
			version = -1
		case Priority(other.GetPod()) >= Priority(pod):
			before = append(before, other)
		}
	}
	if len(before) == 0 {
		return nil, 0
	}
	return before, version
}

// NodeOf returns the node for which the pod is nominated, or "".
func (n *Nominator) NodeOf(uid types.UID) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.nodeOf[uid]
}
