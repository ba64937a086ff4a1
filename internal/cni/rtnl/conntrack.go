package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ForgetUDP makes the kernel forget UDP flows to ports of the host: a flow from before a port was
// opened would never be translated.
func ForgetUDP(ports []uint16) error {
	if len(ports) == 0 {
		return nil
	}
	var filters []netlink.CustomConntrackFilter
	for _, p := range ports {
		f := &netlink.ConntrackFilter{}
		if err := errors.Join(f.AddProtocol(unix.IPPROTO_UDP), f.AddPort(netlink.ConntrackOrigDstPort, p)); err != nil {
			return err
		}
		filters = append(filters, f)
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("drop UDP connection tracking of host ports: %w", err)
		}
	}
	return nil
}
