package proxy

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/proxy/nftables"
)

// place is an element of a set.
type place struct{ set, key string }

// entry is an element with what belongs there.
type entry struct {
	place
	value string // of a map, but of verdicts
	chain string // for a map of verdicts: where to go
	drop  bool   // instead of chain
	pass  bool   // instead of chain
	end   string // of a range
}

func (e entry) element() nftables.Element {
	return nftables.Element{Key: e.key, End: e.end, Value: e.value, Go: e.chain, Drop: e.drop, Pass: e.pass}
}

func protocolNumber(p v1.Protocol) byte {
	switch p {
	case v1.ProtocolUDP:
		return unix.IPPROTO_UDP
	case v1.ProtocolSCTP:
		return unix.IPPROTO_SCTP
	default:
		return unix.IPPROTO_TCP
	}
}

func mark(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }

func portBytes(n uint16) string { return string(append(binary.BigEndian.AppendUint16(nil, n), 0, 0)) }

func (f *Frontend) key() string {
	return string(f.Address.AsSlice()) + string([]byte{protocolNumber(f.Protocol), 0, 0, 0}) + portBytes(f.Port)
}

func endpointBytes(e netip.AddrPort) string { return string(e.Addr().AsSlice()) + portBytes(e.Port()) }

// suffix tells the sets of the families apart.
func suffix(ip netip.Addr) string {
	if ip.Is4() {
		return "4"
	}
	return "6"
}

// entries returns all elements that the rules need.
func (r *Rules) entries() (out []entry) {
	for i := range r.Frontends {
		out = append(out, r.frontend(&r.Frontends[i])...)
	}
	for _, ip := range r.ClusterIPs {
		out = append(out, entry{place: place{"cluster-ips" + suffix(ip), string(ip.AsSlice())}})
	}
	for _, ip := range r.Hairpins {
		out = append(out, entry{place: place{"hairpins" + suffix(ip), string(ip.AsSlice()) + string(ip.AsSlice())}})
	}
	return out
}

// picker is the chain that picks an endpoint. Balancers with as many endpoints, and the same
// affinity, share one.
type picker struct {
	outside  bool
	n        int
	affinity time.Duration
	four     bool
}

func (p picker) name() string {
	name, family := "pick", "6"
	if p.outside {
		name = "pick-outside"
	}
	if p.four {
		family = "4"
	}
	if p.affinity > 0 {
		return fmt.Sprintf("%s%s-%d-for-%ds", name, family, p.n, int(p.affinity/time.Second))
	}
	return fmt.Sprintf("%s%s-%d", name, family, p.n)
}

func (r *Rules) picker(t Target, outside bool) picker {
	b := &r.Balancers[t]
	return picker{outside, len(b.Endpoints), b.Affinity, b.Endpoints[0].Addr().Is4()}
}

// pickers returns the chains that the rules go to.
func (r *Rules) pickers() (out []picker) {
	for _, f := range r.Frontends {
		if f.To >= 0 {
			out = append(out, r.picker(f.To, false))
		}
		if f.HasOutside && f.Outside >= 0 {
			out = append(out, r.picker(f.Outside, true))
		}
	}
	return out
}

func (r *Rules) frontend(f *Frontend) (out []entry) {
	key, s := f.key(), suffix(f.Address)
	add := func(set, more string, e entry) {
		e.set, e.key = set+s, key+more
		out = append(out, e)
	}
	r.lead(f.To, false, add)
	if f.HasOutside {
		r.lead(f.Outside, true, add)
	}
	switch f.Source {
	case Masquerade:
		add("masquerade", "", entry{})
	case OfTheNode:
		add("masquerade-node", "", entry{})
	case Keep:
	}
	if f.Guarded {
		add("guarded", "", entry{})
		for _, p := range f.Allowed {
			add("allowed", string(p.Addr().AsSlice()), entry{end: key + string(last(p).AsSlice())})
		}
	}
	return out
}

// lead says where a frontend leads.
func (r *Rules) lead(t Target, outside bool, add func(set, more string, e entry)) {
	prefix := ""
	if outside {
		prefix = "outside-"
	}
	switch t {
	case Reject:
		add(prefix+"check", "", entry{chain: rejectChain})
	case Drop:
		add(prefix+"check", "", entry{drop: true})
	default:
		if !outside {
			add("check", "", entry{pass: true})
		}
		p := r.picker(t, outside)
		add(prefix+"services", "", entry{chain: p.name()})
		for i, e := range r.Balancers[t].Endpoints {
			add(prefix+"endpoints", mark(uint32(i)), entry{value: endpointBytes(e)})
			if p.affinity > 0 {
				add(prefix+learners, endpointBytes(e), entry{chain: p.learner()})
			}
		}
	}
}

// last returns the last address of a network.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := range b {
		if free := (i+1)*8 - p.Bits(); free > 0 {
			b[i] |= byte(math.MaxUint8 >> (8 - min(free, 8)))
		}
	}
	ip, _ := netip.AddrFromSlice(b) // as long as it was
	return ip
}
