package volumes

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// provision says where a volume could be made for a claim.
type provision struct {
	supported  bool // the class makes volumes at all
	topologies []v1.TopologySelectorTerm
	limited    bool   // the driver says how much room it has, and only pools count
	pools      []pool // that have room for the claim, the largest first
}

// pool is the room of a driver that some nodes can reach.
type pool struct {
	nodes    labels.Selector
	capacity int64 // in bytes, 0 if only the size of a volume is limited
}

// newProvision takes the claim's class (nil if there is none), the driver of the class's volumes (nil if it is not a
// CSI driver, or not known), and what that driver says about its room for this class.
func newProvision(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, driver *storagev1.CSIDriver,
	room []*storagev1.CSIStorageCapacity) *provision {
	if class == nil {
		return &provision{}
	}
	size, sized := claim.Spec.Resources.Requests[v1.ResourceStorage]
	out := &provision{
		supported:  class.Provisioner != "" && class.Provisioner != volume.NotSupportedProvisioner,
		topologies: class.AllowedTopologies,
		limited:    sized && driver != nil && ptr.Deref(driver.Spec.StorageCapacity, false),
	}
	if !out.limited {
		return out
	}
	for _, c := range room {
		limit := largestVolume(c)
		if c.StorageClassName != class.Name || c.NodeTopology == nil || limit == nil || limit.Cmp(size) < 0 {
			continue
		}
		nodes, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
		if err != nil {
			continue // the API server does not let it in
		}
		p := pool{nodes: nodes}
		if c.Capacity != nil {
			p.capacity = c.Capacity.Value()
		}
		out.pools = append(out.pools, p)
	}
	slices.SortStableFunc(out.pools, func(a, b pool) int { return cmp.Compare(b.capacity, a.capacity) })
	return out
}

// largestVolume returns the largest volume for which a driver has room, or nil if it has none.
func largestVolume(c *storagev1.CSIStorageCapacity) *resource.Quantity {
	if c.MaximumVolumeSize != nil {
		return c.MaximumVolumeSize
	}
	return c.Capacity
}

// on returns the room for the claim on a node with these labels, or why there is none.
func (p *provision) on(node labels.Set) (capacity int64, why string) {
	if !p.supported || !allowed(p.topologies, node) {
		return 0, reasonBind
	}
	if !p.limited {
		return 0, ""
	}
	for _, pool := range p.pools {
		if pool.nodes.Matches(node) {
			return pool.capacity, ""
		}
	}
	return 0, reasonSpace
}

// allowed reports whether a node is in one of the topologies. If there are none, every node is.
func allowed(terms []v1.TopologySelectorTerm, node labels.Set) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t v1.TopologySelectorTerm) bool {
		outside := func(r v1.TopologySelectorLabelRequirement) bool {
			value, ok := node[r.Key]
			return !ok || !slices.Contains(r.Values, value)
		}
		return len(t.MatchLabelExpressions) > 0 && !slices.ContainsFunc(t.MatchLabelExpressions, outside)
	})
}
