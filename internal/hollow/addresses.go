package hollow

import (
	"errors"
	"net/netip"
)

// addresses gives out the addresses of a node's pods, each to one sandbox at a time, and one that was
// given back as late as possible. Its runtime's lock guards it.
type addresses struct {
	network netip.Prefix
	used    map[netip.Addr]bool
	last    uint32 // offset of the one that was given out last
}

func newAddresses(network netip.Prefix) *addresses {
	return &addresses{network: network, used: map[netip.Addr]bool{}}
}

var errNoAddress = errors.New("no address is left in the network of the node's pods")

// take returns an address that nobody has. The first two and the last are the network's own.
func (a *addresses) take() (netip.Addr, error) {
	size := uint32(1) << (32 - a.network.Bits())
	for range size {
		if a.last++; a.last < 2 || a.last >= size-1 {
			a.last = 1
			continue
		}
		if ip := plus(a.network.Addr(), a.last); !a.used[ip] {
			a.used[ip] = true
			return ip, nil
		}
	}
	return netip.Addr{}, errNoAddress
}

// keep notes the address of a pod that a former process started.
func (a *addresses) keep(ip netip.Addr) { a.used[ip] = true }

func (a *addresses) free(ip netip.Addr) { delete(a.used, ip) }
