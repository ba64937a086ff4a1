package numa

import (
	"cmp"
	"fmt"
	"iter"
	"math/bits"

	"k8s.io/utils/cpuset"
)

// MaxNodes is how many NUMA nodes a machine may have, numbered from 0.
const MaxNodes = 64

// MostSets is how many NUMA nodes a machine may have where all sets of them are looked at and no option says otherwise.
const MostSets = 16

// Nodes is a set of NUMA nodes: bit N stands for node N. Empty, where an affinity is meant, stands for any of them.
type Nodes uint64

// NodesOf returns the set of some nodes. Numbers that no node can have are left out.
func NodesOf(ids ...int) Nodes {
	var out Nodes
	for _, id := range ids {
		if id >= 0 && id < MaxNodes {
			out |= 1 << id
		}
	}
	return out
}

// Parse reads what String wrote.
func Parse(s string) (Nodes, error) {
	set, err := cpuset.Parse(s)
	if err != nil {
		return 0, fmt.Errorf("NUMA nodes %q: %w", s, err)
	}
	return NodesOf(set.List()...), nil
}

// Has reports whether a node is in the set.
func (n Nodes) Has(id int) bool { return n&NodesOf(id) != 0 }

// Count returns how many nodes there are.
func (n Nodes) Count() int { return bits.OnesCount64(uint64(n)) }

// IDs returns the nodes' numbers in ascending order.
func (n Nodes) IDs() []int {
	var out []int
	for rest := uint64(n); rest != 0; rest &= rest - 1 {
		out = append(out, bits.TrailingZeros64(rest))
	}
	return out
}

// String writes the set as the kernel does: "0-1,3".
func (n Nodes) String() string { return cpuset.New(n.IDs()...).String() }

// Subsets returns all sets of the nodes but the empty one. There are 2^n-1 of them.
func (n Nodes) Subsets() iter.Seq[Nodes] {
	return func(yield func(Nodes) bool) {
		for sub := -n & n; sub != 0; sub = (sub - n) & n { // counts in the bits that are set
			if !yield(sub) {
				return
			}
		}
	}
}

// narrower orders sets: those with fewer nodes come first, then those with lower numbers.
func narrower(a, b Nodes) int { return cmp.Or(cmp.Compare(a.Count(), b.Count()), cmp.Compare(a, b)) }
