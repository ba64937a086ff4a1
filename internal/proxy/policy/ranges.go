package policy

import (
	"net/netip"
	"slices"

	"wherry.dev/internal/api/netpol"
)

// Opening is what is allowed with some addresses. Those of a list do not overlap.
type Opening struct {
	netpol.Addresses
	ports netpol.PortSet
}

var (
	zero4, last4 = netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{255, 255, 255, 255})
	zero6, last6 = netip.IPv6Unspecified(), netpol.LastOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
)

func everybody() []netpol.Addresses {
	return []netpol.Addresses{{First: zero4, Last: last4}, {First: zero6, Last: last6}}
}

// edge is where a grant's addresses begin, or have just ended.
type edge struct {
	at    netip.Addr
	grant int
	step  int // 1 begins, -1 ends
}

// openings adds grants up: it cuts the addresses where any grant begins or ends, and says for each
// piece which ports are open. The kernel's sets take no ranges that overlap.
func openings(grants []grant) []Opening {
	var out []Opening
	for _, bits := range []int{32, 128} {
		out = append(out, sweep(grants, bits)...)
	}
	return out
}

// sweep does that for the family whose addresses have so many bits.
func sweep(grants []grant, bits int) (out []Opening) {
	var edges []edge
	for i, g := range grants {
		if g.ports.Empty() {
			continue
		}
		for _, r := range g.peers {
			if r.First.BitLen() != bits {
				continue
			}
			edges = append(edges, edge{r.First, i, 1})
			if next := r.Last.Next(); next.IsValid() { // else it goes on to the end
				edges = append(edges, edge{next, i, -1})
			}
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) })
	open := map[int]int{} // grants, and how many of their ranges are here
	for i := 0; i < len(edges); {
		at := edges[i].at
		for ; i < len(edges) && edges[i].at == at; i++ {
			e := edges[i]
			if open[e.grant] += e.step; open[e.grant] == 0 {
				delete(open, e.grant)
			}
		}
		last := endOf(bits)
		if i < len(edges) {
			last = edges[i].at.Prev()
		}
		out = extend(out, Opening{netpol.Addresses{First: at, Last: last}, union(grants, open)})
	}
	return out
}

func endOf(bits int) netip.Addr {
	if bits == 32 {
		return last4
	}
	return last6
}

// extend appends an opening, or makes the one before longer.
func extend(out []Opening, o Opening) []Opening {
	if o.ports.Empty() {
		return out
	}
	if n := len(out); n > 0 && out[n-1].Last.Next() == o.First && out[n-1].ports.Equal(o.ports) {
		out[n-1].Last = o.Last
		return out
	}
	return append(out, o)
}

// union returns the ports of all grants that are open.
func union(grants []grant, open map[int]int) netpol.PortSet {
	var list []netpol.Ports
	for i := range open {
		if grants[i].ports.All {
			return netpol.PortSet{All: true}
		}
		list = append(list, grants[i].ports.Ranges...)
	}
	return netpol.PortSet{Ranges: netpol.Merge(list)}
}
