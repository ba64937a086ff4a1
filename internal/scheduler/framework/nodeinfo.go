package framework

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
)

// generation counts changes of NodeInfos, so that a snapshot copies only what has changed since the
// last one.
var generation atomic.Int64

// NodeInfo is a node with the pods that are on it, or are assumed to be.
type NodeInfo struct {
	node             *v1.Node
	pods             []fwk.PodInfo
	withAffinity     []fwk.PodInfo
	withAnti         []fwk.PodInfo // of these, those that require others to stay away
	ports            fwk.HostPortInfo
	requested        *Resource
	nonZeroRequested *Resource
	allocatable      *Resource
	images           map[string]*fwk.ImageStateSummary
	counts           uint64 // see CountImages
	pvcs             map[string]int
	features         ndf.FeatureSet
	generation       int64
	place            int
}

var _ fwk.NodeInfo = (*NodeInfo)(nil)

// NewNodeInfo returns a node without pods. node is nil as long as the API object is not known.
func NewNodeInfo(node *v1.Node) *NodeInfo {
	n := &NodeInfo{
		ports: fwk.HostPortInfo{}, requested: &Resource{}, nonZeroRequested: &Resource{}, allocatable: &Resource{},
		images: map[string]*fwk.ImageStateSummary{}, pvcs: map[string]int{}, generation: generation.Add(1),
	}
	if node != nil {
		n.SetNode(node)
	}
	return n
}

// Node returns the API object, or nil for a node that is only known from its pods.
func (n *NodeInfo) Node() *v1.Node { return n.node }

// GetPods returns all pods of the node.
func (n *NodeInfo) GetPods() []fwk.PodInfo { return n.pods }

// GetPodsWithAffinity returns the pods with any affinity or anti-affinity to pods.
func (n *NodeInfo) GetPodsWithAffinity() []fwk.PodInfo { return n.withAffinity }

// GetPodsWithRequiredAntiAffinity returns the pods that keep others away.
func (n *NodeInfo) GetPodsWithRequiredAntiAffinity() []fwk.PodInfo { return n.withAnti }

// GetPodsWithRequiredNonHostScopedAntiAffinity returns the pods that keep others off more than
// their own host.
func (n *NodeInfo) GetPodsWithRequiredNonHostScopedAntiAffinity() []fwk.PodInfo {
	return slices.DeleteFunc(slices.Clone(n.withAnti), func(p fwk.PodInfo) bool {
		return !slices.ContainsFunc(p.GetRequiredAntiAffinityTerms(), func(t fwk.AffinityTerm) bool {
			return t.TopologyKey != v1.LabelHostname
		})
	})
}

func hasAffinity(p fwk.PodInfo) bool {
	return len(p.GetRequiredAffinityTerms())+len(p.GetRequiredAntiAffinityTerms())+
		len(p.GetPreferredAffinityTerms())+len(p.GetPreferredAntiAffinityTerms()) > 0
}

// GetUsedPorts returns the host ports that are taken.
func (n *NodeInfo) GetUsedPorts() fwk.HostPortInfo { return n.ports }

// GetRequested returns the sum of the pods' requests.
func (n *NodeInfo) GetRequested() fwk.Resource { return n.requested }

// GetNonZeroRequested is like GetRequested, with a default for containers without requests.
func (n *NodeInfo) GetNonZeroRequested() fwk.Resource { return n.nonZeroRequested }

// GetAllocatable returns the resources that the node has for pods.
func (n *NodeInfo) GetAllocatable() fwk.Resource { return n.allocatable }

// GetImageStates returns the images that the node has.
func (n *NodeInfo) GetImageStates() map[string]*fwk.ImageStateSummary { return n.images }

// GetPVCRefCounts returns the number of pods that use each claim, by namespace/name.
func (n *NodeInfo) GetPVCRefCounts() map[string]int { return n.pvcs }

// GetGeneration returns a number that grows with every change of this node.
func (n *NodeInfo) GetGeneration() int64 { return n.generation }

// Place returns where the node is in its snapshot's list.
func (n *NodeInfo) Place() int { return n.place }

// RequestedBy returns the sum of the requests of some of the pods, and how many they are.
func (n *NodeInfo) RequestedBy(is func(*v1.Pod) bool) (*Resource, int) {
	sum, count := &Resource{}, 0
	for _, p := range n.pods {
		if !is(p.GetPod()) {
			continue
		}
		count++
		if r, ok := p.CalculateResource().Resource.(*Resource); ok {
			sum.add(r, 1)
		}
	}
	return sum, count
}

// SetPlace is called by the snapshot, before anybody else has the node.
func (n *NodeInfo) SetPlace(i int) { n.place = i }

// GetNodeDeclaredFeatures returns what the node's kubelet says that it can do (KEP-5328).
func (n *NodeInfo) GetNodeDeclaredFeatures() ndf.FeatureSet { return n.features }

// Snapshot copies the node, so that the original can change.
func (n *NodeInfo) Snapshot() fwk.NodeInfo { return n.Clone() }

// Clone is Snapshot with the concrete type. What is replaced but never changed is shared: the node, what it has to
// give, its images and its features.
func (n *NodeInfo) Clone() *NodeInfo {
	c := &struct {
		NodeInfo
		requested, nonZeroRequested Resource
	}{*n, n.requested.clone(), n.nonZeroRequested.clone()}
	c.NodeInfo.requested, c.NodeInfo.nonZeroRequested = &c.requested, &c.nonZeroRequested
	c.pods, c.withAffinity, c.withAnti = slices.Clone(n.pods), slices.Clone(n.withAffinity), slices.Clone(n.withAnti)
	c.ports = make(fwk.HostPortInfo, len(n.ports))
	for ip, ports := range n.ports {
		c.ports[ip] = maps.Clone(ports)
	}
	c.pvcs = maps.Clone(n.pvcs)
	return &c.NodeInfo
}

func (n *NodeInfo) String() string {
	name := "<unknown>"
	if n.node != nil {
		name = n.node.Name
	}
	return fmt.Sprintf("%s: %d pods, requested %d mCPU %d bytes", name, len(n.pods), n.requested.MilliCPU, n.requested.Memory)
}

// SetNode replaces the API object.
func (n *NodeInfo) SetNode(node *v1.Node) {
	same := n.SameImages(node)
	n.node = node
	n.allocatable = NewResource(node.Status.Allocatable)
	n.features = ndf.DefaultFramework.TryMap(slices.Sorted(slices.Values(node.Status.DeclaredFeatures)))
	n.generation = generation.Add(1)
	if same {
		return // as they were counted
	}
	n.counts, n.images = 0, make(map[string]*fwk.ImageStateSummary, 2*len(node.Status.Images))
	for _, img := range node.Status.Images {
		for _, name := range img.Names {
			n.images[name] = &fwk.ImageStateSummary{Size: img.SizeBytes, NumNodes: 1}
		}
	}
}

// SameImages reports whether node has the images that the node had before.
func (n *NodeInfo) SameImages(node *v1.Node) bool {
	return n.node != nil && slices.EqualFunc(n.node.Status.Images, node.Status.Images, sameImage)
}

func sameImage(a, b v1.ContainerImage) bool {
	return a.SizeBytes == b.SizeBytes && slices.Equal(a.Names, b.Names)
}

// CountImages brings up to date how many nodes have each of the node's images. counts is another one, and above 0,
// whenever nodes is. What clones have stays as it is.
func (n *NodeInfo) CountImages(counts uint64, nodes map[string]int) {
	if n.counts == counts {
		return
	}
	n.counts = counts
	for name, image := range n.images {
		if image.NumNodes == nodes[name] {
			continue
		}
		counted := make(map[string]*fwk.ImageStateSummary, len(n.images))
		all := make([]fwk.ImageStateSummary, 0, len(n.images))
		for name, image := range n.images {
			all = append(all, fwk.ImageStateSummary{Size: image.Size, NumNodes: nodes[name]})
			counted[name] = &all[len(all)-1]
		}
		n.images = counted
		return
	}
}

// RemoveNode forgets the API object. The pods stay until they are removed themselves.
func (n *NodeInfo) RemoveNode() {
	n.node = nil
	n.allocatable, n.features = &Resource{}, ndf.FeatureSet{}
	n.images, n.counts = map[string]*fwk.ImageStateSummary{}, 0
	n.generation = generation.Add(1)
}

// AddPodInfo puts a pod on the node.
func (n *NodeInfo) AddPodInfo(p fwk.PodInfo) {
	n.pods = append(n.pods, p)
	if hasAffinity(p) {
		n.withAffinity = append(n.withAffinity, p)
	}
	if len(p.GetRequiredAntiAffinityTerms()) > 0 {
		n.withAnti = append(n.withAnti, p)
	}
	n.account(p, 1)
}

// RemovePod removes the pod with the same UID from the node.
func (n *NodeInfo) RemovePod(_ klog.Logger, pod *v1.Pod) error {
	same := func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID }
	i := slices.IndexFunc(n.pods, same)
	if i < 0 {
		return fmt.Errorf("pod %s/%s is not on node %s", pod.Namespace, pod.Name, pod.Spec.NodeName)
	}
	p := n.pods[i]
	n.pods = slices.Delete(n.pods, i, i+1)
	if hasAffinity(p) {
		n.withAffinity = slices.DeleteFunc(n.withAffinity, same)
		n.withAnti = slices.DeleteFunc(n.withAnti, same)
	}
	n.account(p, -1)
	return nil
}

func (n *NodeInfo) account(p fwk.PodInfo, sign int64) {
	res := p.CalculateResource()
	if r, ok := res.Resource.(*Resource); ok {
		n.requested.add(r, sign)
	}
	n.nonZeroRequested.add(&Resource{MilliCPU: res.Non0CPU, Memory: res.Non0Mem}, sign)
	for _, port := range pods.HostPorts(p.GetPod()) {
		if sign > 0 {
			n.ports.Add(port.HostIP, string(port.Protocol), port.HostPort)
		} else {
			n.ports.Remove(port.HostIP, string(port.Protocol), port.HostPort)
		}
	}
	for _, v := range p.GetPod().Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		key := types.NamespacedName{Namespace: p.GetPod().Namespace, Name: v.PersistentVolumeClaim.ClaimName}.String()
		if n.pvcs[key] += int(sign); n.pvcs[key] <= 0 {
			delete(n.pvcs, key)
		}
	}
	n.generation = generation.Add(1)
}
