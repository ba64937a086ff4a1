package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	result "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/cni/rtnl"
	"wherry.dev/internal/netns"
)

// ensureBridge makes the bridge, or uses an existing one.
func (c *bridgeConf) ensureBridge(conn *rtnl.Conn) (*netlink.Bridge, error) {
	err := conn.Do(rtnl.NewBridge(c.Bridge, nil, c.MTU))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("could not add %q: %w", c.Bridge, err)
	}
	made := err == nil
	br, err := c.findBridge()
	if err != nil {
		return nil, err
	}
	if made {
		// We set its routes. Without IPv6 there is nothing to switch off.
		if err := writeSysctl("net/ipv6/conf/"+c.Bridge+"/accept_ra", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if c.PromiscMode {
		if err := conn.Do(rtnl.Promisc(br.Index)); err != nil {
			return nil, fmt.Errorf("could not set promiscuous mode on %q: %w", c.Bridge, err)
		}
	}
	if br.Flags&net.FlagUp == 0 {
		if err := conn.Do(rtnl.Up(br.Index)); err != nil {
			return nil, fmt.Errorf("could not bring up %q: %w", c.Bridge, err)
		}
	}
	return br, nil
}

func (c *bridgeConf) findBridge() (*netlink.Bridge, error) {
	link, err := netlink.LinkByName(c.Bridge)
	if err != nil {
		return nil, fmt.Errorf("could not lookup %q: %w", c.Bridge, err)
	}
	br, ok := link.(*netlink.Bridge)
	if !ok {
		return nil, fmt.Errorf("%q already exists but is not a bridge", c.Bridge)
	}
	return br, nil
}

func writeSysctl(name, value string) error {
	path, err := netns.SysctlPath(name)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && len(have) > 0 && string(have[:1]) == value {
		return nil // the file may be read-only and already right
	}
	return os.WriteFile(path, []byte(value), 0)
}

// ensureGateways gives the bridge the gateways' addresses and enables forwarding.
func (c *bridgeConf) ensureGateways(conn *rtnl.Conn, br *netlink.Bridge, r *result.Result) error {
	if !c.IsGateway {
		return nil
	}
	for _, ip := range r.IPs {
		gw, ok := netip.AddrFromSlice(ip.Gateway)
		if !ok {
			return fmt.Errorf("address %s has no gateway", ip.Address.String())
		}
		own := netip.PrefixFrom(gw.Unmap(), toPrefix(ip.Address).Bits())
		if err := c.ensureAddr(conn, br, own); err != nil {
			return err
		}
		forward := "net/ipv6/conf/all/forwarding"
		if own.Addr().Is4() {
			forward = "net/ipv4/ip_forward"
		}
		if err := writeSysctl(forward, "1"); err != nil {
			return fmt.Errorf("failed to enable forwarding: %w", err)
		}
	}
	return nil
}

// ensureAddr gives the bridge an address. A bridge has one IPv4 network, and IPv6 networks that
// do not overlap: any other address is an error, or is replaced if forceAddress is set.
func (c *bridgeConf) ensureAddr(conn *rtnl.Conn, br *netlink.Bridge, own netip.Prefix) error {
	family := netlink.FAMILY_V6
	if own.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	have, err := netlink.AddrList(br, family)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("could not get list of IP addresses: %w", err)
	}
	for _, a := range have {
		p := toPrefix(*a.IPNet)
		if p == own {
			return nil
		}
		if own.Addr().Is6() && !p.Overlaps(own) {
			continue
		}
		if !c.ForceAddress {
			return fmt.Errorf("%q already has an IP address different from %s", c.Bridge, own)
		}
		if err := netlink.AddrDel(br, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("could not remove IP address from %q: %w", c.Bridge, err)
		}
	}
	// Set its MAC to the current one, or it would change with the ports.
	if err := conn.Do(rtnl.Addr(br.Index, own, c.EnableDAD), rtnl.SetMAC(br.Index, br.HardwareAddr)); err != nil {
		return fmt.Errorf("could not add IP address %s to %q: %w", own, c.Bridge, err)
	}
	return nil
}

func toPrefix(n net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}

func prefixes(r *result.Result) []netip.Prefix {
	var ps []netip.Prefix
	for _, ip := range r.IPs {
		ps = append(ps, toPrefix(ip.Address))
	}
	return ps
}

// routes returns the routes of the result. A route without a gateway goes through the gateway of
// its IP family's first address.
func routes(r *result.Result) ([]rtnl.Route, error) {
	gateways := map[bool]netip.Addr{} // by Is4
	for _, ip := range r.IPs {
		gw, ok := netip.AddrFromSlice(ip.Gateway)
		if _, has := gateways[gw.Unmap().Is4()]; ok && !has {
			gateways[gw.Unmap().Is4()] = gw.Unmap()
		}
	}
	var rs []rtnl.Route
	for _, x := range r.Routes {
		out := rtnl.Route{Dst: toPrefix(x.Dst), MTU: x.MTU, AdvMSS: x.AdvMSS, Priority: x.Priority}
		if !out.Dst.IsValid() {
			return nil, invalid("route %s: the destination is not a network", x.Dst.String())
		}
		out.GW = gateways[out.Dst.Addr().Is4()]
		if gw, ok := netip.AddrFromSlice(x.GW); ok {
			out.GW = gw.Unmap()
		}
		if x.Table != nil {
			out.Table = *x.Table
		}
		if x.Scope != nil {
			out.Scope = *x.Scope
			if out.Scope == unix.RT_SCOPE_LINK && x.GW == nil {
				out.GW = netip.Addr{}
			}
		}
		rs = append(rs, out)
	}
	return rs, nil
}

// bridgeCheck compares what exists with the result of ADD.
func bridgeCheck(ctx context.Context, args *skel.CmdArgs) error {
	c, err := readBridge(args)
	if err != nil {
		return err
	}
	if c.IPAM.Type != "" {
		if err := ipamCall(ctx, c.IPAM.Type, args, ipamCheck); err != nil {
			return err
		}
	}
	r, err := previous(&c.PluginConf)
	if err != nil {
		return err
	}
	if r == nil {
		return invalid("Required prevResult missing")
	}
	br, err := c.findBridge()
	if err != nil {
		return err
	}
	host, err := netlink.LinkByName(hostLink(args))
	if err != nil {
		return fmt.Errorf("CNI veth created for bridge %s was not found: %w", c.Bridge, err)
	}
	if host.Attrs().MasterIndex != br.Index {
		return fmt.Errorf("%s is no longer connected to bridge %s", host.Attrs().Name, c.Bridge)
	}
	if err := netns.Do(func() error { return checkInside(args, r) }, args.Netns); err != nil {
		return err
	}
	if c.IPMasq {
		return checkTagged(ctx, masqTable, tag(c.Name, args.ContainerID, args.IfName), 2*len(ownAddrs(args, r)))
	}
	return nil
}

// ownAddrs returns the addresses of the container's interface.
func ownAddrs(args *skel.CmdArgs, r *result.Result) []netip.Prefix {
	var ps []netip.Prefix
	for _, ip := range r.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) &&
			(r.Interfaces[*i].Name != args.IfName || r.Interfaces[*i].Sandbox == "") {
			continue
		}
		ps = append(ps, toPrefix(ip.Address))
	}
	return ps
}

// checkInside runs in the container's namespace.
func checkInside(args *skel.CmdArgs, r *result.Result) error {
	var want []netip.Addr
	for _, p := range ownAddrs(args, r) {
		want = append(want, p.Addr())
	}
	if err := rtnl.HasAddrs(args.IfName, want); err != nil {
		return err
	}
	link, err := net.InterfaceByName(args.IfName)
	if err != nil {
		return err
	}
	for _, i := range r.Interfaces {
		if i.Name == args.IfName && i.Sandbox != "" && i.Mac != "" && i.Mac != link.HardwareAddr.String() {
			return fmt.Errorf("Interface %s Mac %s doesn't match container Mac: %s", i.Name, i.Mac, link.HardwareAddr) //nolint:staticcheck // upstream's words
		}
	}
	have, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, want := range r.Routes {
		if want.Table != nil && *want.Table != unix.RT_TABLE_MAIN {
			continue // the list has only the main table's
		}
		found := false
		for _, h := range have {
			found = found || h.Dst != nil && toPrefix(*h.Dst) == toPrefix(want.Dst) && (want.GW == nil || h.Gw.Equal(want.GW))
		}
		if !found {
			return fmt.Errorf("route to %s is missing", want.Dst.String())
		}
	}
	return nil
}
