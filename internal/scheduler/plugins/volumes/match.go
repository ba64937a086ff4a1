package volumes

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/storage/volume"
)

// place is a label that a node must have to reach a volume.
type place struct{ key, value string }

// candidates are the volumes that a claim could have if only its node were right. They are put together once for a
// pod, so that each node looks only at those that it may reach, smallest first.
type candidates struct {
	own      *v1.PersistentVolume // is kept for the claim, or bound to it already: no other will do
	at       map[place][]candidate
	keys     sets.Set[string] // of the places
	anywhere []candidate      // those whose places cannot be told so easily
}

type candidate struct {
	pv   *v1.PersistentVolume
	size resource.Quantity
}

// compare puts the smaller volume first. Equal ones are sorted by name, so that every node makes the same choice.
func (c candidate) compare(d candidate) int {
	return cmp.Or(c.size.Cmp(d.size), cmp.Compare(c.pv.Name, d.pv.Name))
}

// newCandidates picks from volumes of the claim's class.
func newCandidates(claim *v1.PersistentVolumeClaim, pvs []*v1.PersistentVolume) (*candidates, error) {
	out := &candidates{at: map[place][]candidate{}, keys: sets.New[string]()}
	var fit []candidate
	for _, pv := range pvs {
		// Without a node, the library checks everything but the node and the modes of access.
		match, err := volume.FindMatchingVolume(claim, []*v1.PersistentVolume{pv}, nil, nil, false, true)
		switch {
		case err != nil:
			return nil, err
		case match == nil:
		case volume.IsVolumeBoundToClaim(pv, claim):
			out.own = pv
		case volume.CheckAccessModes(claim, pv):
			fit = append(fit, candidate{pv, pv.Spec.Capacity[v1.ResourceStorage]})
		}
	}
	if out.own != nil {
		return out, nil
	}
	slices.SortFunc(fit, candidate.compare)
	for _, c := range fit {
		places := placesOf(c.pv)
		if len(places) == 0 {
			out.anywhere = append(out.anywhere, c)
		}
		for p := range places {
			out.keys.Insert(p.key)
			out.at[p] = append(out.at[p], c)
		}
	}
	return out, nil
}

// placesOf returns places of which a node must have at least one, or none if the volume's node affinity is not that
// simple.
func placesOf(pv *v1.PersistentVolume) sets.Set[place] {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	out := sets.New[place]()
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		best := narrowest(term.MatchExpressions)
		if best == nil {
			return nil
		}
		for _, v := range best.Values {
			out.Insert(place{best.Key, v})
		}
	}
	return out
}

// narrowest returns the requirement that fewest nodes meet, as far as that can be told: a host, or else the one with
// the fewest values.
func narrowest(all []v1.NodeSelectorRequirement) *v1.NodeSelectorRequirement {
	var best *v1.NodeSelectorRequirement
	for i := range all {
		switch r := &all[i]; {
		case r.Operator != v1.NodeSelectorOpIn:
		case r.Key == v1.LabelHostname:
			return r
		case best == nil || len(r.Values) < len(best.Values):
			best = r
		}
	}
	return best
}

// find returns the smallest volume that a node with these labels can reach and that is not taken, or nil.
func (c *candidates) find(labels map[string]string, taken sets.Set[string]) *v1.PersistentVolume {
	if c.own != nil {
		if taken.Has(c.own.Name) || !canReach(c.own, labels) {
			return nil
		}
		return c.own
	}
	best := first(c.anywhere, labels, taken)
	for k := range c.keys {
		value, ok := labels[k]
		if !ok {
			continue
		}
		if here := first(c.at[place{k, value}], labels, taken); best == nil || here != nil && here.compare(*best) < 0 {
			best = here
		}
	}
	if best == nil {
		return nil
	}
	return best.pv
}

// canReach reports whether a node with these labels meets the volume's node affinity.
func canReach(pv *v1.PersistentVolume, labels map[string]string) bool {
	return volume.CheckNodeAffinity(pv, labels) == nil
}

func first(list []candidate, labels map[string]string, taken sets.Set[string]) *candidate {
	for i := range list {
		if !taken.Has(list[i].pv.Name) && canReach(list[i].pv, labels) {
			return &list[i]
		}
	}
	return nil
}
