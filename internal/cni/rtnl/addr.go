package rtnl

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// MACOf derives a locally administered MAC from an address, so that an address that is reused
// keeps its MAC and no neighbour table goes stale.
func MACOf(a netip.Addr) net.HardwareAddr {
	if a.Is4() {
		ip := a.As4()
		return net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], ip[3]}
	}
	h := sha256.Sum256(a.AsSlice())
	return net.HardwareAddr{0x0a, 0x59, h[0], h[1], h[2], h[3]}
}

// HasAddrs returns an error if a link of the calling thread's namespace is not up or lacks one of
// the addresses.
func HasAddrs(name string, want []netip.Addr) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if link.Flags&net.FlagUp == 0 {
		return fmt.Errorf("interface %s is down", name)
	}
	have, err := link.Addrs()
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", name, err)
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Addr() == w
		}) {
			return fmt.Errorf("interface %s has lost its address %s", name, w)
		}
	}
	return nil
}
