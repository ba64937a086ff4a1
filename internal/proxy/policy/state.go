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

// content is what the table has besides its layout.
type content struct {
	classes  map[class]bool
	elements elements
}

// numbers gives every class a number, which it keeps as long as there is one of its name.
type numbers struct {
	of   map[string]uint32
	last uint32
}

// give returns the numbers of a plan's classes, and forgets all others.
func (n *numbers) give(p *Plan) map[string]uint32 {
	out := map[string]uint32{}
	for _, d := range Directions {
		for name := range p.Classes[d] {
			name = string(d) + " " + name
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

// content says what the table has to hold.
func (n *numbers) content(p *Plan) content {
	out, ids := content{map[class]bool{}, elements{}}, n.give(p)
	for _, d := range Directions {
		for a, name := range p.Isolated[d] {
			f, ip := familyOf(a), string(a.AsSlice())
			c := class{sides[d], f, ids[string(d)+" "+name]}
			out.elements.add(c.side.name+classes+f.suffix, nft.Element{Key: ip, Go: c.chain()})
			out.elements.add(selves+f.suffix, nft.Element{Key: ip + ip})
			if out.classes[c] {
				continue
			}
			out.classes[c] = true
			for i := range p.Classes[d][name] {
				if o := &p.Classes[d][name][i]; familyOf(o.First) == f {
					out.elements.open(c, o)
				}
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
func (e elements) open(c class, o *Opening) {
	first, last := string(o.First.AsSlice()), string(o.Last.AsSlice())
	if o.ports.All {
		e.add(c.opened(), nft.Element{Key: first + protocol(0), End: last + protocol(255)})
		return
	}
	for _, r := range o.ports.Ranges {
		p, known := protocols[r.Protocol]
		if !known {
			continue // the API server lets no other one pass
		}
		e.add(c.ported(), nft.Element{Key: first + protocol(p) + port(r.First), End: last + protocol(p) + port(r.Last)})
	}
}

var protocols = map[v1.Protocol]byte{
	v1.ProtocolTCP: unix.IPPROTO_TCP, v1.ProtocolUDP: unix.IPPROTO_UDP, v1.ProtocolSCTP: unix.IPPROTO_SCTP,
}

func protocol(n byte) string { return string([]byte{n, 0, 0, 0}) }

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

// change writes what makes the content of the table: it takes out first, so that ranges do not overlap
// and nothing leads to what goes.
func (c content) change(b *nft.Batch, told content) {
	gone := told.elements.without(c.elements)
	for old := range told.classes {
		if !c.classes[old] {
			delete(gone, old.opened()) // they go with their sets
			delete(gone, old.ported())
		}
	}
	write(gone, b.DeleteElements)
	for old := range told.classes {
		if !c.classes[old] {
			old.remove(b)
		}
	}
	for made := range c.classes {
		if !told.classes[made] {
			made.write(b)
		}
	}
	write(c.elements.without(told.elements), b.AddElements)
}
