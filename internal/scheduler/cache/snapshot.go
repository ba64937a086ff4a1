package cache

import (
	"fmt"
	"slices"
	"strings"

	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/framework"
)

// Snapshot is the cluster as one attempt sees it: the nodes that exist, those of different zones in
// turn, so that a search that ends early has seen all zones. It is written by Cache.Update, and read
// only until the next one.
type Snapshot struct {
	byName map[string]*framework.NodeInfo
	place  map[string]int // of a node in list
	list   []fwk.NodeInfo
	// stale means that list does not have all nodes, or has them in a wrong order.
	stale bool
	order uint64 // how often the list was put together

	affine, anti part
	groups       fwk.PodGroupManager

	// originals has the nodes that mutations have replaced, as they were; nil outside of them.
	originals map[string]*framework.NodeInfo
	within    *within // nil: all nodes

	// changed has the names of the nodes that changed last, in order; before counts those that it does
	// not have any more.
	changed []string
	before  uint64
}

// keptChanges is how many changes a snapshot remembers at least.
const keptChanges = 4096

// part is some of the nodes, in any order.
type part struct {
	nodes []fwk.NodeInfo
	at    map[string]int // the place of a node in nodes
}

// put replaces a node, or takes it out.
func (p *part) put(name string, n fwk.NodeInfo, in bool) {
	i, was := p.at[name]
	switch {
	case in && was:
		p.nodes[i] = n
	case in:
		if p.at == nil {
			p.at = map[string]int{}
		}
		p.at[name] = len(p.nodes)
		p.nodes = append(p.nodes, n)
	case was:
		last := len(p.nodes) - 1
		p.nodes[i] = p.nodes[last]
		p.at[p.nodes[i].Node().Name] = i
		p.nodes[last] = nil
		p.nodes = p.nodes[:last]
		delete(p.at, name)
	}
}

var (
	_ fwk.SharedLister   = (*Snapshot)(nil)
	_ fwk.NodeInfoLister = (*Snapshot)(nil)
)

// NewSnapshot returns one without nodes.
func NewSnapshot(groups fwk.PodGroupManager) *Snapshot {
	return &Snapshot{byName: map[string]*framework.NodeInfo{}, place: map[string]int{}, groups: groups}
}

// note remembers that a node has changed.
func (s *Snapshot) note(name string) {
	if len(s.changed) >= 2*keptChanges {
		s.before += keptChanges
		s.changed = append(s.changed[:0], s.changed[keptChanges:]...)
	}
	s.changed = append(s.changed, name)
}

// ChangedSince returns the names of the nodes that were added, removed or have changed since a moment,
// some perhaps repeatedly, and the present moment. It reports false if the moment is too long ago; the
// first moment is 0, or if the snapshot is narrowed. The caller must not change the slice, and it is valid until the next Update.
func (s *Snapshot) ChangedSince(moment uint64) (names []string, now uint64, ok bool) {
	now = s.before + uint64(len(s.changed))
	if moment == 0 || moment < s.before || s.within != nil {
		return nil, now, false
	}
	return s.changed[moment-s.before:], now, true
}

func (s *Snapshot) set(name string, n *framework.NodeInfo) {
	s.note(name)
	old := s.byName[name]
	s.byName[name] = n
	if old == nil || zone(old) != zone(n) {
		s.stale = true
	} else if !s.stale {
		n.SetPlace(s.place[name])
		s.list[s.place[name]] = n
	}
	s.affine.put(name, n, len(n.GetPodsWithAffinity()) > 0)
	s.anti.put(name, n, len(n.GetPodsWithRequiredAntiAffinity()) > 0)
}

func (s *Snapshot) remove(name string) {
	if _, ok := s.byName[name]; ok {
		s.note(name)
		delete(s.byName, name)
		s.stale = true
		s.affine.put(name, nil, false)
		s.anti.put(name, nil, false)
	}
}

// settle puts the list in order after changes.
func (s *Snapshot) settle() {
	if !s.stale {
		return
	}
	zones := map[string][]*framework.NodeInfo{}
	var names []string
	for _, n := range s.byName {
		z := zone(n)
		if zones[z] == nil {
			names = append(names, z)
		}
		zones[z] = append(zones[z], n)
	}
	slices.Sort(names)
	for _, nodes := range zones {
		slices.SortFunc(nodes, func(a, b *framework.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
	}
	s.list = make([]fwk.NodeInfo, 0, len(s.byName))
	clear(s.place)
	for i := 0; len(s.list) < len(s.byName); i++ {
		for _, z := range names {
			if i < len(zones[z]) {
				zones[z][i].SetPlace(len(s.list))
				s.place[zones[z][i].Node().Name] = len(s.list)
				s.list = append(s.list, zones[z][i])
			}
		}
	}
	s.stale = false
	s.order++
}

// Order returns a number that changes whenever nodes change their places in the list.
func (s *Snapshot) Order() uint64 { return s.order }

// zone identifies a node's zone and region.
func zone(n *framework.NodeInfo) string {
	l := n.Node().Labels
	return l["topology.kubernetes.io/region"] + "/" + l["topology.kubernetes.io/zone"]
}

// Nodes returns the nodes to which pods may go: all, or those that the snapshot is narrowed to. The caller must not change
// the slice.
func (s *Snapshot) Nodes() []fwk.NodeInfo {
	if s.within != nil {
		return s.narrowed()
	}
	return s.list
}

// NodeInfos returns the snapshot itself.
func (s *Snapshot) NodeInfos() fwk.NodeInfoLister { return s }

// List returns all nodes: pods elsewhere matter, too, to those that may go to some only. The caller must not change the
// slice.
func (s *Snapshot) List() ([]fwk.NodeInfo, error) { return s.list, nil }

// Get returns the node, or an error if there is none.
func (s *Snapshot) Get(name string) (fwk.NodeInfo, error) {
	n, err := s.node(name)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// Candidate returns the node, if pods may go there.
func (s *Snapshot) Candidate(name string) (fwk.NodeInfo, bool) {
	n, ok := s.byName[name]
	return n, ok && (s.within == nil || s.within.in.Has(name))
}

func (s *Snapshot) node(name string) (*framework.NodeInfo, error) {
	if n, ok := s.byName[name]; ok {
		return n, nil
	}
	return nil, fmt.Errorf("node %q is not in the scheduler's snapshot", name)
}

// HavePodsWithAffinityList returns the nodes with pods that have any affinity to pods. The caller must not change the
// slice.
func (s *Snapshot) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return s.affine.nodes, nil
}

// HavePodsWithRequiredAntiAffinityList returns the nodes with pods that keep others away. The caller must not change
// the slice.
func (s *Snapshot) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return s.anti.nodes, nil
}

// HavePodsWithRequiredNonHostScopedAntiAffinityList returns the nodes with pods that keep others away
// from more than their own host.
func (s *Snapshot) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	anti, err := s.HavePodsWithRequiredAntiAffinityList()
	return slices.DeleteFunc(slices.Clone(anti), func(n fwk.NodeInfo) bool {
		return len(n.GetPodsWithRequiredNonHostScopedAntiAffinity()) == 0
	}), err
}

// StorageInfos returns the snapshot itself.
func (s *Snapshot) StorageInfos() fwk.StorageInfoLister { return s }

// IsPVCUsedByPods reports whether a pod that has a node uses the claim, given as namespace/name.
func (s *Snapshot) IsPVCUsedByPods(key string) bool {
	return slices.ContainsFunc(s.list, func(n fwk.NodeInfo) bool { return n.GetPVCRefCounts()[key] > 0 })
}

// PodGroupStates returns the pods of pod groups. They are as they are now: in a group's cycle, only the cycle itself
// gives pods a node.
func (s *Snapshot) PodGroupStates() fwk.PodGroupStateLister { return s.groups.PodGroupStates() }

// PodGroups returns the pod groups of the API.
func (s *Snapshot) PodGroups() fwk.PodGroupLister { return s.groups.PodGroups() }

// CompositePodGroupStates returns the groups of groups, of which there are none.
func (s *Snapshot) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return s.groups.CompositePodGroupStates()
}

// CompositePodGroups returns the groups of groups, of which there are none.
func (s *Snapshot) CompositePodGroups() fwk.CompositePodGroupLister {
	return s.groups.CompositePodGroups()
}
