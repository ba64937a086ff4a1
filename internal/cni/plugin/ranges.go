package plugin

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"wherry.dev/internal/cni/rtnl"
)

// rangeConf is a range of addresses as configured.
type rangeConf struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}

// ipRange is a range with everything filled in; both ends belong to it.
type ipRange struct {
	subnet     netip.Prefix
	start, end netip.Addr
	gateway    netip.Addr
}

// rangeSet is a choice of ranges: a container gets one address from each set.
type rangeSet []ipRange

func parseRanges(conf [][]rangeConf) ([]rangeSet, error) {
	if len(conf) == 0 {
		return nil, errors.New("no IP ranges specified")
	}
	var sets []rangeSet
	for i, rs := range conf {
		var set rangeSet
		for _, rc := range rs {
			r, err := rc.parse()
			if err != nil {
				return nil, fmt.Errorf("invalid range set %d: %w", i, err)
			}
			if len(set) > 0 && set[0].start.Is4() != r.start.Is4() {
				return nil, fmt.Errorf("invalid range set %d: mixed address families", i)
			}
			set = append(set, r)
		}
		if len(set) == 0 {
			return nil, fmt.Errorf("invalid range set %d: empty range set", i)
		}
		for j, other := range sets {
			if a, b, ok := overlap(other, set); ok {
				return nil, fmt.Errorf("range set %d overlaps with %d: %s and %s", j, i, a, b)
			}
		}
		for j := range set {
			if a, b, ok := overlap(set[:j], set[j:j+1]); ok {
				return nil, fmt.Errorf("invalid range set %d: subnets %s and %s overlap", i, a, b)
			}
		}
		sets = append(sets, set)
	}
	return sets, nil
}

func (rc rangeConf) parse() (r ipRange, err error) {
	if r.subnet, err = netip.ParsePrefix(rc.Subnet); err != nil {
		return r, fmt.Errorf("subnet: %w", err)
	}
	if r.subnet != r.subnet.Masked() {
		return r, fmt.Errorf("Network has host bits set. For a subnet mask of length %d the network address is %s", //nolint:staticcheck // upstream's words
			r.subnet.Bits(), r.subnet.Masked().Addr())
	}
	if r.subnet.Addr().BitLen()-r.subnet.Bits() < 2 {
		return r, fmt.Errorf("Network %s too small to allocate from", r.subnet) //nolint:staticcheck // upstream's words
	}
	r.start, r.gateway = r.subnet.Addr().Next(), r.subnet.Addr().Next()
	r.end = rtnl.LastAddr(r.subnet)
	if r.end.Is4() {
		r.end = r.end.Prev() // the last address is for broadcasts
	}
	for _, x := range []struct {
		name, value string
		to          *netip.Addr
		inside      bool
	}{{"RangeStart", rc.RangeStart, &r.start, true}, {"RangeEnd", rc.RangeEnd, &r.end, true}, {"gateway", rc.Gateway, &r.gateway, false}} {
		if x.value == "" {
			continue
		}
		a, err := netip.ParseAddr(x.value)
		if err != nil {
			return r, fmt.Errorf("%s: %w", x.name, err)
		}
		if a = a.Unmap(); x.inside && !r.subnet.Contains(a) {
			return r, fmt.Errorf("%s %s not in network %s", x.name, a, r.subnet)
		}
		*x.to = a
	}
	if r.end.Less(r.start) {
		return r, fmt.Errorf("RangeEnd %s is before RangeStart %s", r.end, r.start)
	}
	return r, nil
}

func (r ipRange) contains(a netip.Addr) bool {
	return r.subnet.Contains(a) && !a.Less(r.start) && !r.end.Less(a)
}

func (r ipRange) String() string { return r.start.String() + "-" + r.end.String() }

func overlap(a, b rangeSet) (x, y ipRange, ok bool) {
	for _, x := range a {
		for _, y := range b {
			if x.contains(y.start) || y.contains(x.start) {
				return x, y, true
			}
		}
	}
	return x, y, false
}

// find returns the range that contains an address, or nil.
func (s rangeSet) find(a netip.Addr) *ipRange {
	for i := range s {
		if s[i].contains(a) {
			return &s[i]
		}
	}
	return nil
}

func (s rangeSet) holdsOne(addrs []netip.Addr) bool {
	for _, a := range addrs {
		if s.find(a) != nil {
			return true
		}
	}
	return false
}

func (s rangeSet) String() string {
	var all []string
	for _, r := range s {
		all = append(all, r.String())
	}
	return strings.Join(all, ",")
}

// each visits each address of the set once, starting after last, until visit returns stop.
func (s rangeSet) each(last netip.Addr, visit func(netip.Addr, *ipRange) (stop bool)) {
	first, from := 0, s[0].start
	for i := range s {
		if s[i].contains(last) {
			first, from = i, last.Next()
			if last == s[i].end {
				first = (i + 1) % len(s)
				from = s[first].start
			}
		}
	}
	for n := range len(s) + 1 {
		r := &s[(first+n)%len(s)]
		a, end := r.start, r.end
		switch n {
		case 0:
			a = from
		case len(s): // the part of the first range that was skipped
			if from == r.start {
				return
			}
			end = from.Prev()
		}
		for ; !end.Less(a); a = a.Next() {
			if visit(a, r) {
				return
			}
			if a == end {
				break
			}
		}
	}
}
