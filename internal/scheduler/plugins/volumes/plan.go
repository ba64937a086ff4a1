package volumes

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/storage/volume"
)

// Upstream's words.
const (
	reasonAffinity = "node(s) didn't match PersistentVolume's node affinity"
	reasonBind     = "node(s) didn't find available persistent volumes to bind"
	reasonSpace    = "node(s) did not have enough free storage"
	reasonGone     = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// needs is what a pod's claims need of a node.
type needs struct {
	// bound are the volumes of claims that have theirs; nil stands for one that does not exist.
	bound []*v1.PersistentVolume
	open  []openClaim // the smallest first
}

// openClaim is a claim that gets its volume when the pod has a node.
type openClaim struct {
	claim *v1.PersistentVolumeClaim
	// match and provision are how it could get one. There is no match for a claim for which a node was selected before.
	match     *candidates
	provision *provision
}

// plan is how a pod's open claims get their volumes on one node.
type plan struct {
	bind      []binding
	provision []provisioning
}

// binding gives a volume that exists to a claim.
type binding struct {
	claim *v1.PersistentVolumeClaim
	pv    *v1.PersistentVolume
}

// provisioning has a volume made for a claim, from so much room; 0 if that is not known.
type provisioning struct {
	claim    *v1.PersistentVolumeClaim
	capacity int64
}

// on returns how the claims get their volumes on the node, or why they do not.
func (n *needs) on(node *v1.Node, csiNode *storagev1.CSINode) (*plan, []string, error) {
	reasons, err := reachable(n.bound, node, csiNode)
	if err != nil {
		return nil, nil, err
	}
	p, why := n.choose(node)
	if why != "" {
		reasons = append(reasons, why)
	}
	return p, reasons, nil
}

// reachable returns why the node cannot reach the volumes: for the first of them that is in the way.
func reachable(pvs []*v1.PersistentVolume, node *v1.Node, csiNode *storagev1.CSINode) ([]string, error) {
	for _, pv := range pvs {
		if pv == nil {
			return []string{reasonGone}, nil
		}
		there, err := onNode(pv, csiNode)
		if err != nil {
			return nil, err
		}
		if !canReach(there, node.Labels) {
			return []string{reasonAffinity}, nil
		}
	}
	return nil, nil
}

// choose gives each claim the smallest volume that is left, or has one made.
func (n *needs) choose(node *v1.Node) (*plan, string) {
	p := &plan{}
	taken := sets.New[string]()
	for _, c := range n.open {
		if c.match == nil && c.claim.Annotations[volume.AnnSelectedNode] != node.Name {
			return nil, reasonBind
		}
	}
	for _, c := range n.open {
		if c.match != nil {
			if pv := c.match.find(node.Labels, taken); pv != nil {
				taken.Insert(pv.Name)
				p.bind = append(p.bind, binding{c.claim, pv})
				continue
			}
		}
		capacity, why := c.provision.on(labels.Set(node.Labels))
		if why != "" {
			return nil, why
		}
		p.provision = append(p.provision, provisioning{c.claim, capacity})
	}
	return p, ""
}
