package cache

import (
	"fmt"
	"slices"
	"strings"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
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

	affine, anti lazyList
}

// lazyList is a part of the list of nodes that is put together when somebody asks for it.
type lazyList struct {
	nodes []fwk.NodeInfo
	known bool
}

var (
	_ fwk.SharedLister   = (*Snapshot)(nil)
	_ fwk.NodeInfoLister = (*Snapshot)(nil)
)

// NewSnapshot returns one without nodes.
func NewSnapshot() *Snapshot {
	return &Snapshot{byName: map[string]*framework.NodeInfo{}, place: map[string]int{}}
}

func (s *Snapshot) set(name string, n *framework.NodeInfo) {
	old := s.byName[name]
	s.byName[name] = n
	if old == nil || zone(old) != zone(n) {
		s.stale = true
	} else if !s.stale {
		s.list[s.place[name]] = n
	}
	if old == nil || len(old.GetPodsWithAffinity())+len(n.GetPodsWithAffinity()) > 0 {
		s.affine, s.anti = lazyList{}, lazyList{}
	}
}

func (s *Snapshot) remove(name string) {
	if _, ok := s.byName[name]; ok {
		delete(s.byName, name)
		s.stale = true
		s.affine, s.anti = lazyList{}, lazyList{}
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
				s.place[zones[z][i].Node().Name] = len(s.list)
				s.list = append(s.list, zones[z][i])
			}
		}
	}
	s.stale = false
}

// zone identifies a node's zone and region.
func zone(n *framework.NodeInfo) string {
	l := n.Node().Labels
	return l["topology.kubernetes.io/region"] + "/" + l["topology.kubernetes.io/zone"]
}

// Nodes returns all nodes. The caller must not change the slice.
func (s *Snapshot) Nodes() []fwk.NodeInfo { return s.list }

// NodeInfos returns the snapshot itself.
func (s *Snapshot) NodeInfos() fwk.NodeInfoLister { return s }

// List returns all nodes. The caller must not change the slice.
func (s *Snapshot) List() ([]fwk.NodeInfo, error) { return s.list, nil }

// Get returns the node, or an error if there is none.
func (s *Snapshot) Get(name string) (fwk.NodeInfo, error) {
	if n, ok := s.byName[name]; ok {
		return n, nil
	}
	return nil, fmt.Errorf("node %q is not in the scheduler's snapshot", name)
}

func (s *Snapshot) part(l *lazyList, keep func(fwk.NodeInfo) bool) []fwk.NodeInfo {
	if !l.known {
		l.nodes, l.known = nil, true
		for _, n := range s.list {
			if keep(n) {
				l.nodes = append(l.nodes, n)
			}
		}
	}
	return l.nodes
}

// HavePodsWithAffinityList returns the nodes with pods that have any affinity to pods.
func (s *Snapshot) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return s.part(&s.affine, func(n fwk.NodeInfo) bool { return len(n.GetPodsWithAffinity()) > 0 }), nil
}

// HavePodsWithRequiredAntiAffinityList returns the nodes with pods that keep others away.
func (s *Snapshot) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return s.part(&s.anti, func(n fwk.NodeInfo) bool { return len(n.GetPodsWithRequiredAntiAffinity()) > 0 }), nil
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

// PodGroupStates returns a lister of nothing: there are no pod groups.
func (s *Snapshot) PodGroupStates() fwk.PodGroupStateLister { return noGroupStates{} }

// PodGroups returns a lister of nothing: there are no pod groups.
func (s *Snapshot) PodGroups() fwk.PodGroupLister { return noGroups{} }

// CompositePodGroupStates returns a lister of nothing: there are no pod groups.
func (s *Snapshot) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}

// CompositePodGroups returns a lister of nothing: there are no pod groups.
func (s *Snapshot) CompositePodGroups() fwk.CompositePodGroupLister { return noComposites{} }

type (
	noGroupStates     struct{}
	noGroups          struct{}
	noCompositeStates struct{}
	noComposites      struct{}
)

func noGroup(namespace, name string) error {
	return fmt.Errorf("pod group %s/%s: this scheduler has no pod groups: %w", namespace, name, fwk.ErrNotFound)
}

func (noGroupStates) Get(ns, name string) (fwk.PodGroupState, error) { return nil, noGroup(ns, name) }

func (noGroups) Get(ns, name string) (*schedulingv1beta1.PodGroup, error) {
	return nil, noGroup(ns, name)
}

func (noCompositeStates) Get(ns, name string) (fwk.CompositePodGroupState, error) {
	return nil, noGroup(ns, name)
}

func (noComposites) Get(ns, name string) (*schedulingv1alpha3.CompositePodGroup, error) {
	return nil, noGroup(ns, name)
}
