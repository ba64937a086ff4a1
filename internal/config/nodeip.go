package config

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// defaultIP returns the address by which the machine is known: the one on the default route, else
// its first global one, else loopback on a machine without a network.
func defaultIP() (net.IP, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("cannot find the node's address; set --node-ip: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		if ip := firstGlobal(func(i net.Interface) bool { return i.Index == r.LinkIndex }); ip != nil {
			return ip, nil
		}
	}
	up := func(i net.Interface) bool { return i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 }
	if ip := firstGlobal(up); ip != nil {
		return ip, nil
	}
	return net.IPv4(127, 0, 0, 1), nil
}

func firstGlobal(want func(net.Interface) bool) net.IP {
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, l := range links {
		if !want(l) {
			continue
		}
		addrs, err := l.Addrs()
		if err != nil {
			continue // the interface went away
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
				return n.IP.To4()
			}
		}
	}
	return nil
}
