package cpus

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"
)

// Take chooses n of the free CPUs so that they are near each other, and others' are left near each other, too: whole
// sockets or NUMA nodes while that many are wanted (the larger ones of these first), then whole cores, then single CPUs.
// Of parts that are alike, those that are least free come first, then the lower numbers (upstream's order).
func Take(t Topology, free cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	taken := cpuset.New()
	if n > free.Size() {
		return taken, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, free.Size())
	}
	take := func(part []CPU) {
		for _, c := range part {
			taken = taken.Union(cpuset.New(c.ID))
		}
		free = free.Difference(taken)
	}
	levels := []level{socketOf, numaOf}
	if len(t.sizes(numaOf)) < len(t.sizes(socketOf)) {
		levels = []level{numaOf, socketOf}
	}
	whole := func(of level) {
		sizes := t.sizes(of)
		for _, part := range t.parts(free, levels, of) {
			if left := n - taken.Size(); len(part) == sizes[of(part[0])] && len(part) <= left {
				take(part)
			}
		}
	}
	for _, of := range levels {
		whole(of)
	}
	whole(coreOf)
	for _, part := range t.parts(free, levels, coreOf) {
		take(part[:min(len(part), n-taken.Size())])
	}
	return taken, nil
}

// parts returns the free CPUs, grouped by the parts of a level, in the order in which they are to be taken.
func (t Topology) parts(free cpuset.CPUSet, levels []level, of level) [][]CPU {
	there := t.Only(free)
	outer, inner, cores, own := there.sizes(levels[0]), there.sizes(levels[1]), there.sizes(coreOf), there.sizes(of)
	slices.SortStableFunc(there, func(a, b CPU) int {
		if order := cmp.Or(
			cmp.Compare(outer[levels[0](a)], outer[levels[0](b)]), cmp.Compare(levels[0](a), levels[0](b)),
			cmp.Compare(inner[levels[1](a)], inner[levels[1](b)]), cmp.Compare(levels[1](a), levels[1](b)),
		); order != 0 {
			return order
		}
		return cmp.Or(cmp.Compare(cores[a.Core], cores[b.Core]), cmp.Compare(a.Core, b.Core), cmp.Compare(a.ID, b.ID))
	})
	var out [][]CPU
	at := map[int]int{}
	for _, c := range there {
		i, ok := at[of(c)]
		if !ok {
			i = len(out)
			at[of(c)] = i
			out = append(out, make([]CPU, 0, own[of(c)]))
		}
		out[i] = append(out[i], c)
	}
	return out
}
