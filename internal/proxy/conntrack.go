package proxy

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// stale finds UDP flows that lead to an endpoint that a frontend does not have any more: UDP has no
// end, so a client that goes on sending would be lost for ever. A frontend without endpoints loses
// nothing.
type stale map[netip.AddrPort]map[netip.AddrPort]bool

// add notes a service's frontends and their endpoints.
func (s stale) add(r *Rules) {
	for _, f := range r.Frontends {
		if f.Protocol != v1.ProtocolUDP {
			continue
		}
		endpoints := map[netip.AddrPort]bool{}
		for _, t := range []Target{f.To, f.Outside} {
			if t >= 0 && (t == f.To || f.HasOutside) {
				for _, e := range r.Balancers[t].Endpoints {
					endpoints[e] = true
				}
			}
		}
		if len(endpoints) > 0 {
			s[netip.AddrPortFrom(f.Address, f.Port)] = endpoints
		}
	}
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s stale) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(flow.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	endpoints, ours := s[netip.AddrPortFrom(to.Unmap(), flow.Forward.DstPort)]
	return ours && !endpoints[netip.AddrPortFrom(from.Unmap(), flow.Reverse.SrcPort)]
}

// clear makes the kernel forget these flows.
func (s stale) clear() error {
	has := map[netlink.InetFamily]bool{}
	for frontend := range s {
		if frontend.Addr().Is4() {
			has[unix.AF_INET] = true
		} else {
			has[unix.AF_INET6] = true
		}
	}
	for f := range has {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, f, s)
		// A flow may end by itself meanwhile, and new ones go where they should.
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget UDP flows to endpoints that are gone: %w", err)
		}
	}
	return nil
}
