package policy

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	nft "wherry.dev/internal/proxy/nftables"
)

// elements are those of all sets: by the name of the set, then by what tells them apart.
type elements map[string]map[key]nft.Element

// key is an element's place; two ranges with the same beginning are two elements.
type key struct{ first, last string }

// numbers gives every class a number, which it keeps as long as there is one of its name.
type numbers struct {
	of   map[string]uint32
	last uint32
}

func number(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }

// give returns the numbers of a plan's classes, and forgets all others.
func (n *numbers) give(p *Plan) map[string]uint32 {
	out := map[string]uint32{}
	for _, d := range Directions {
		for class := range p.Classes[d] {
			name := sides[d].name + " " + class
			id, ok := n.of[name]
			if !ok {
				n.last++
				id = n.last
			}
			out[name] = id
		}
	}
	n.of = out
	return out
}

// elements says what the sets have to hold.
func (n *numbers) elements(p *Plan) elements {
	out, ids := elements{}, n.give(p)
	for _, d := range Directions {
		name := sides[d].name
		for a, class := range p.Isolated[d] {
			f, ip := familyOf(a), string(a.AsSlice())
			out.add(name+classes+f.suffix, nft.Element{Key: ip, Value: number(ids[name+" "+class])})
			out.add(selves+f.suffix, nft.Element{Key: ip + ip})
		}
		for class, all := range p.Classes[d] {
			for i := range all {
				out.open(name, ids[name+" "+class], &all[i])
			}
		}
	}
	return out
}

func (e elements) add(set string, x nft.Element) {
	if e[set] == nil {
		e[set] = map[key]nft.Element{}
	}
	e[set][key{x.Key, x.End}] = x
}

// open adds an opening of a class.
func (e elements) open(name string, class uint32, o *Opening) {
	f := familyOf(o.first)
	first, last := number(class)+string(o.first.AsSlice()), number(class)+string(o.last.AsSlice())
	if o.ports.all {
		e.add(name+opened+f.suffix, nft.Element{Key: first, End: last})
		return
	}
	for _, r := range o.ports.ranges {
		p, known := protocols[r.protocol]
		if !known {
			continue // nothing else passes either
		}
		tail := string([]byte{p, 0, 0, 0})
		e.add(name+ported+f.suffix, nft.Element{Key: first + tail + port(r.first), End: last + tail + port(r.last)})
	}
}

var protocols = map[v1.Protocol]byte{
	v1.ProtocolTCP: unix.IPPROTO_TCP, v1.ProtocolUDP: unix.IPPROTO_UDP, v1.ProtocolSCTP: unix.IPPROTO_SCTP,
}

func port(n uint16) string { return string(append(binary.BigEndian.AppendUint16(nil, n), 0, 0)) }

// without returns the elements that other does not have as they are here, by set.
func (e elements) without(other elements) map[string][]nft.Element {
	out := map[string][]nft.Element{}
	for set, all := range e {
		for k, x := range all {
			if had, ok := other[set][k]; !ok || had != x {
				out[set] = append(out[set], x)
			}
		}
	}
	return out
}

// write calls add for all elements, in order.
func write(sets map[string][]nft.Element, add func(string, []nft.Element)) {
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		slices.SortFunc(sets[name], func(a, b nft.Element) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.End, b.End)) })
		add(name, sets[name])
	}
}
