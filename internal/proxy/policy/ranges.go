package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// addresses are all from the first to the last, of one family.
type addresses struct{ first, last netip.Addr }

// ports are all from the first to the last.
type ports struct {
	protocol    v1.Protocol
	first, last uint16
}

// portSet is all there is, other protocols too, or some ranges that neither overlap nor touch, in
// order.
type portSet struct {
	all    bool
	ranges []ports
}

func (s portSet) empty() bool { return !s.all && len(s.ranges) == 0 }

func (s portSet) equal(o portSet) bool { return s.all == o.all && slices.Equal(s.ranges, o.ranges) }

// Opening is what is allowed with some addresses. Those of a list do not overlap.
type Opening struct {
	addresses
	ports portSet
}

var (
	zero4, last4 = netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{255, 255, 255, 255})
	zero6, last6 = netip.IPv6Unspecified(), lastOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
)

func everybody() []addresses { return []addresses{{zero4, last4}, {zero6, last6}} }

// lastOf returns the last address of a network.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	ip, _ := netip.AddrFromSlice(b) // as long as it was
	return ip
}

func rangeOf(cidr string) (addresses, bool) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return addresses{}, false
	}
	return addresses{p.Masked().Addr(), lastOf(p.Masked())}, true
}

// block returns the addresses of a block without its exceptions. One that is no network is nobody's;
// an exception that is none excepts everybody, because what it was to keep out must stay out.
func block(b *networkingv1.IPBlock) []addresses {
	whole, ok := rangeOf(b.CIDR)
	if !ok {
		return nil
	}
	out := []addresses{whole}
	for _, cidr := range b.Except {
		e, ok := rangeOf(cidr)
		if !ok {
			return nil
		}
		var left []addresses
		for _, r := range out {
			left = append(left, r.without(e)...)
		}
		out = left
	}
	return out
}

// without returns what is left of r when e is taken out of it.
func (r addresses) without(e addresses) (out []addresses) {
	if e.first.BitLen() != r.first.BitLen() || e.last.Less(r.first) || r.last.Less(e.first) {
		return []addresses{r}
	}
	if r.first.Less(e.first) {
		out = append(out, addresses{r.first, e.first.Prev()})
	}
	if e.last.Less(r.last) {
		out = append(out, addresses{e.last.Next(), r.last})
	}
	return out
}

// merged sorts ranges, and makes one of those that overlap or touch.
func merged(in []ports) []ports {
	slices.SortFunc(in, func(a, b ports) int {
		return cmp.Or(strings.Compare(string(a.protocol), string(b.protocol)), cmp.Compare(a.first, b.first))
	})
	var out []ports
	for _, r := range in {
		if n := len(out); n > 0 && out[n-1].protocol == r.protocol && int(r.first) <= int(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return out
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
		if g.ports.empty() {
			continue
		}
		for _, r := range g.peers {
			if r.first.BitLen() != bits {
				continue
			}
			edges = append(edges, edge{r.first, i, 1})
			if next := r.last.Next(); next.IsValid() { // else it goes on to the end
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
		out = extend(out, Opening{addresses{at, last}, union(grants, open)})
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
	if o.ports.empty() {
		return out
	}
	if n := len(out); n > 0 && out[n-1].last.Next() == o.first && out[n-1].ports.equal(o.ports) {
		out[n-1].last = o.last
		return out
	}
	return append(out, o)
}

// union returns the ports of all grants that are open.
func union(grants []grant, open map[int]int) portSet {
	var list []ports
	for i := range open {
		if grants[i].ports.all {
			return portSet{all: true}
		}
		list = append(list, grants[i].ports.ranges...)
	}
	return portSet{ranges: merged(list)}
}
