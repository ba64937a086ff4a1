package nodeipam

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
)

// mostRanges is how many ranges of nodes a network may be divided into. It is upstream's limit: the prefixes of
// network and range are at most 16 bits apart.
const mostRanges = 1 << 16

// errNoRange means that all ranges of a network are taken.
var errNoRange = errors.New("all ranges are taken")

// network divides one network of pods into ranges of equal size, one for each node. It is not safe for concurrent use.
type network struct {
	prefix netip.Prefix
	bits   int // of a range
	count  int
	// users is how many nodes, or reservations, have a part of each range. What nodes have need not be a range of
	// ours: somebody may have written it before.
	users map[int]int
	next  int // where the search for a free one begins, so that a range is not given again at once
}

func newNetwork(prefix netip.Prefix, bits int) (*network, error) {
	apart := bits - prefix.Bits()
	switch {
	case apart < 0 || bits > prefix.Addr().BitLen():
		return nil, fmt.Errorf("ranges of /%d do not fit into the network of pods %s", bits, prefix)
	case apart > 16:
		return nil, fmt.Errorf("the network of pods %s has more than %d ranges of /%d; choose larger ranges", prefix, mostRanges, bits)
	}
	return &network{prefix: prefix.Masked(), bits: bits, count: 1 << apart, users: map[int]int{}}, nil
}

// at returns a range by its index.
func (n *network) at(i int) netip.Prefix {
	bytes := n.prefix.Addr().AsSlice()
	for bit, left := n.bits-1, i; left > 0; bit, left = bit-1, left>>1 {
		if left&1 == 1 {
			bytes[bit/8] |= 0x80 >> (bit % 8)
		}
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, n.bits)
}

// index returns the range in which an address of the network is.
func (n *network) index(a netip.Addr) int {
	bytes, i := a.AsSlice(), 0
	for bit := n.prefix.Bits(); bit < n.bits; bit++ {
		i = i<<1 | int(bytes[bit/8]>>(7-bit%8)&1)
	}
	return i
}

// parts returns the first and the last range of which p has a part. ok is false if it has none.
func (n *network) parts(p netip.Prefix) (first, last int, ok bool) {
	if !n.prefix.Overlaps(p) {
		return 0, 0, false
	}
	if p.Bits() <= n.prefix.Bits() {
		return 0, n.count - 1, true
	}
	first = n.index(p.Addr())
	return first, first + 1<<max(n.bits-p.Bits(), 0) - 1, true
}

// use notes that somebody has p; change is -1 to give it back.
func (n *network) use(p netip.Prefix, change int) {
	first, last, ok := n.parts(p)
	if !ok {
		return
	}
	for i := first; i <= last; i++ {
		if n.users[i] += change; n.users[i] <= 0 {
			delete(n.users, i)
		}
	}
}

// taken reports whether somebody has a part of p.
func (n *network) taken(p netip.Prefix) bool {
	first, last, ok := n.parts(p)
	for i := first; ok && i <= last; i++ {
		if n.users[i] > 0 {
			return true
		}
	}
	return false
}

// take returns a range that nobody has a part of, and notes that it is used.
func (n *network) take() (netip.Prefix, error) {
	for step := range n.count {
		i := (n.next + step) % n.count
		if n.users[i] > 0 {
			continue
		}
		n.users[i]++
		n.next = (i + 1) % n.count
		return n.at(i), nil
	}
	return netip.Prefix{}, fmt.Errorf("%s has %d of /%d: %w", n.prefix, n.count, n.bits, errNoRange)
}

// free is how many ranges nobody has a part of.
func (n *network) free() int { return max(n.count-len(n.users), 0) }

// usage is which part of the ranges is taken, from 0 to 1.
func (n *network) usage() float64 {
	return math.Min(float64(len(n.users))/float64(n.count), 1)
}
