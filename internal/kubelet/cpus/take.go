package cpus

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"k8s.io/utils/cpuset"
)

// how says how CPUs are chosen, besides being near each other.
type how struct {
	// spread: threads of different cores rather than whole cores.
	spread bool
	// even: the same number from each NUMA node, where one does not have enough; in groups of this size, zero if not.
	even int
	// caches: from as few caches of the last level as possible.
	caches bool
}

// errShort says that there are not enough CPUs.
func errShort(n, free int) error {
	return fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, free)
}

// Take chooses n of the free CPUs so that they are near each other, and others' are left near each other, too: whole
// sockets or NUMA nodes while that many are wanted (the larger ones of these first), then whole cores, then single CPUs.
// Of parts that are alike, those that are least free come first, then the lower numbers (upstream's order).
func Take(t Topology, free cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	return how{}.take(t, free, n)
}

func (h how) take(t Topology, free cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	if n > free.Size() {
		return cpuset.New(), errShort(n, free.Size())
	}
	if h.even > 0 && n%h.even == 0 {
		if set, ok := h.evenly(t, free, n); ok {
			return set, nil
		}
	}
	return h.packed(t, free, n), nil
}

// packed chooses n of at least as many free CPUs.
func (h how) packed(t Topology, free cpuset.CPUSet, n int) cpuset.CPUSet {
	taken := cpuset.New()
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
	if h.caches {
		whole(cacheOf)
		for _, part := range t.parts(free, levels, cacheOf) {
			if left := n - taken.Size(); left > 0 && left <= len(part) {
				taken = taken.Union(how{}.packed(t, t.near(cacheOf, func(id int) bool { return id == part[0].Cache }).Intersection(free), left))
				return taken
			}
		}
	}
	if h.spread {
		there := slices.Concat(t.parts(free, levels, socketOf)...)
		rank := map[int]int{} // of sockets, the least free one first
		for _, c := range there {
			if _, ok := rank[c.Socket]; !ok {
				rank[c.Socket] = len(rank)
			}
		}
		slices.SortFunc(there, func(a, b CPU) int {
			return cmp.Or(cmp.Compare(rank[a.Socket], rank[b.Socket]), cmp.Compare(a.ID, b.ID))
		})
		take(there[:n-taken.Size()])
		return taken
	}
	whole(coreOf)
	for _, part := range t.parts(free, levels, coreOf) {
		take(part[:min(len(part), n-taken.Size())])
	}
	return taken
}

// evenly chooses as many CPUs from each of as few NUMA nodes as possible, so that what is left is even, too (KEP-2902). It
// returns false if that cannot be done.
func (h how) evenly(t Topology, free cpuset.CPUSet, n int) (cpuset.CPUSet, bool) {
	sizes := t.Only(free).sizes(numaOf)
	nodes := t.Only(free).nodes()
	var best struct {
		found  bool
		from   map[int]int // how many CPUs of each node
		nodes  int
		uneven float64
	}
	for some := range nodes.Subsets() {
		if best.found && some.Count() > best.nodes {
			continue
		}
		each := n / some.Count() / h.even * h.even
		from := map[int]int{}
		enough := each > 0
		for _, id := range some.IDs() {
			from[id] = each
			enough = enough && sizes[id] >= each
		}
		if !enough || !h.remainder(from, sizes, n-each*some.Count()) {
			continue
		}
		uneven := deviation(nodes.IDs(), sizes, from)
		if !best.found || some.Count() < best.nodes || uneven < best.uneven {
			best.found, best.from, best.nodes, best.uneven = true, from, some.Count(), uneven
		}
	}
	taken := cpuset.New()
	for id, k := range best.from {
		mine := t.near(numaOf, func(i int) bool { return i == id }).Intersection(free)
		taken = taken.Union(how{spread: h.spread}.packed(t, mine, k))
	}
	return taken, best.found
}

// remainder spreads what does not divide evenly, a group at a time, over the nodes that have most left.
func (h how) remainder(from, sizes map[int]int, rest int) bool {
	for ; rest > 0; rest -= h.even {
		most := slices.MinFunc(slices.Collect(maps.Keys(from)), func(a, b int) int {
			return cmp.Or(cmp.Compare(sizes[b]-from[b], sizes[a]-from[a]), cmp.Compare(from[a], from[b]), cmp.Compare(a, b))
		})
		if sizes[most]-from[most] < h.even {
			return false
		}
		from[most] += h.even
	}
	return true
}

// deviation says how uneven the nodes' free CPUs are after some were taken.
func deviation(nodes []int, sizes, from map[int]int) float64 {
	mean, sum := 0.0, 0.0
	for _, id := range nodes {
		mean += float64(sizes[id]-from[id]) / float64(len(nodes))
	}
	for _, id := range nodes {
		sum += math.Pow(float64(sizes[id]-from[id])-mean, 2)
	}
	return math.Round(math.Sqrt(sum/float64(len(nodes)))*1000) / 1000
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
		return cmp.Or(
			cmp.Compare(own[of(a)], own[of(b)]), cmp.Compare(of(a), of(b)),
			cmp.Compare(cores[a.Core], cores[b.Core]), cmp.Compare(a.Core, b.Core), cmp.Compare(a.ID, b.ID),
		)
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
