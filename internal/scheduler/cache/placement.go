package cache

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// within is some of the nodes, by name: they are replaced while a snapshot is narrowed to them.
type within struct {
	names []string
	in    sets.Set[string]
	list  []fwk.NodeInfo // as of the moment
	at    uint64
}

// AssumePlacement narrows the snapshot to some of its nodes, until ForgetPlacement: pods may go nowhere else.
func (s *Snapshot) AssumePlacement(p *fwk.Placement) error {
	w := &within{in: sets.New[string]()}
	for _, n := range p.Nodes {
		name := n.Node().Name
		if _, err := s.node(name); err != nil {
			return fmt.Errorf("placement %q: %w", p.Name, err)
		}
		if !w.in.Has(name) {
			w.names = append(w.names, name)
			w.in.Insert(name)
		}
	}
	s.within = w
	return nil
}

// ForgetPlacement lets pods go to all nodes again.
func (s *Snapshot) ForgetPlacement() { s.within = nil }

// Narrowed reports whether pods may go to some of the nodes only. Their places are those in all of them.
func (s *Snapshot) Narrowed() bool { return s.within != nil }

// narrowed returns the nodes that the snapshot is narrowed to, as they are now.
func (s *Snapshot) narrowed() []fwk.NodeInfo {
	w := s.within
	now := s.before + uint64(len(s.changed))
	if w.list != nil && w.at == now {
		return w.list
	}
	w.list, w.at = make([]fwk.NodeInfo, 0, len(w.names)), now
	for _, name := range w.names {
		if n, ok := s.byName[name]; ok { // else it was removed since
			w.list = append(w.list, n)
		}
	}
	return w.list
}
