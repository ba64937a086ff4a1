package netpol

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Addresses are all from the first to the last, of one family.
type Addresses struct{ First, Last netip.Addr }

// Has reports whether an address is among them.
func (r Addresses) Has(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
}

// Ports are all from the first to the last.
type Ports struct {
	Protocol    v1.Protocol
	First, Last uint16
}

// PortSet is all there is, other protocols too, or some ranges that neither overlap nor touch, in
// order.
type PortSet struct {
	All    bool
	Ranges []Ports
}

// Empty reports whether there is no port.
func (s PortSet) Empty() bool { return !s.All && len(s.Ranges) == 0 }

// Equal reports whether both have the same ports.
func (s PortSet) Equal(o PortSet) bool { return s.All == o.All && slices.Equal(s.Ranges, o.Ranges) }

// Has reports whether a port is in the set.
func (s PortSet) Has(protocol v1.Protocol, port uint16) bool {
	return s.All || slices.ContainsFunc(s.Ranges, func(r Ports) bool {
		return r.Protocol == protocol && r.First <= port && port <= r.Last
	})
}

// LastOf returns the last address of a network.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	ip, _ := netip.AddrFromSlice(b) // as long as it was
	return ip
}

func rangeOf(cidr string) (Addresses, bool) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return Addresses{}, false
	}
	return Addresses{p.Masked().Addr(), LastOf(p.Masked())}, true
}

// Block returns the addresses of a block without its exceptions. One that is no network is nobody's;
// an exception that is none excepts everybody, because what it was to keep out must stay out.
func Block(b *networkingv1.IPBlock) []Addresses {
	whole, ok := rangeOf(b.CIDR)
	if !ok {
		return nil
	}
	out := []Addresses{whole}
	for _, cidr := range b.Except {
		e, ok := rangeOf(cidr)
		if !ok {
			return nil
		}
		var left []Addresses
		for _, r := range out {
			left = append(left, r.without(e)...)
		}
		out = left
	}
	return out
}

// without returns what is left of r when e is taken out of it.
func (r Addresses) without(e Addresses) (out []Addresses) {
	if e.First.BitLen() != r.First.BitLen() || e.Last.Less(r.First) || r.Last.Less(e.First) {
		return []Addresses{r}
	}
	if r.First.Less(e.First) {
		out = append(out, Addresses{r.First, e.First.Prev()})
	}
	if e.Last.Less(r.Last) {
		out = append(out, Addresses{e.Last.Next(), r.Last})
	}
	return out
}

// Merge sorts ranges, and makes one of those that overlap or touch.
func Merge(in []Ports) []Ports {
	slices.SortFunc(in, func(a, b Ports) int {
		return cmp.Or(strings.Compare(string(a.Protocol), string(b.Protocol)), cmp.Compare(a.First, b.First))
	})
	var out []Ports
	for _, r := range in {
		if n := len(out); n > 0 && out[n-1].Protocol == r.Protocol && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}
