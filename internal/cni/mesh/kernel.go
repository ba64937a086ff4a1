package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// routeProtocol marks our routes (rt_protocol); the kernel gives it no meaning.
	routeProtocol = 87
	// port of VXLAN, Linux' own, which other networks of Kubernetes use as well.
	port = 8472
)

// LinkName returns the name of an instance's tunnel. It does not begin as its bridge's does: services and policies know
// what comes from pods by that.
func LinkName(instance string) string { return "whx-" + instance }

// kernel brings plans into the kernel. It is used by one goroutine.
type kernel struct {
	link    string
	mode    string
	vni     uint32
	key     wgtypes.Key // this node's private one, for WireGuard
	cluster []netip.Prefix
}

// wayTo looks up how the kernel reaches an address.
func wayTo(a netip.Addr) (Way, error) {
	routes, err := netlink.RouteGet(net.IP(a.AsSlice()))
	if err != nil {
		return Way{}, fmt.Errorf("no route to %s: %w", a, err)
	}
	if len(routes) == 0 {
		return Way{}, fmt.Errorf("no route to %s", a)
	}
	r := routes[0]
	w := Way{Link: r.LinkIndex, Local: r.Type == unix.RTN_LOCAL}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		w.Gateway = gw.Unmap()
	}
	return w, nil
}

// apply makes the kernel know the plan, and nothing else of ours.
func (k *kernel) apply(p plan, own Node) error {
	index := 0
	var errs []error
	switch {
	case len(p.peers) > 0:
		link, err := k.wireguard(own, p.peers)
		if err != nil {
			return fmt.Errorf("WireGuard %s: %w", k.link, err)
		}
		index = link.Attrs().Index
	case len(p.ends) > 0:
		link, err := k.vxlan(own)
		if err != nil {
			return fmt.Errorf("tunnel %s: %w", k.link, err)
		}
		index = link.Attrs().Index
		errs = append(errs, k.applyEnds(index, p.ends))
	default:
		errs = append(errs, k.removeTunnel())
	}
	return errors.Join(append(errs, k.applyRoutes(index, p.routes))...)
}

// vxlan makes our end of the tunnel as it has to be, or finds it so.
func (k *kernel) vxlan(own Node) (netlink.Link, error) {
	local := own.Addresses[0]
	under, err := linkOf(local)
	if err != nil {
		return nil, err
	}
	want := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: k.link, MTU: tunnelMTU(k.mode, under.Attrs().MTU, local), HardwareAddr: macOf(own.Ranges)},
		VxlanId:   int(k.vni), SrcAddr: local.AsSlice(), Port: port, Learning: false,
	}
	have, err := k.tunnel(want, func(have netlink.Link) bool { return sameTunnel(have, want) })
	if errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("another network on this machine uses VXLAN %d at port %d: %w", k.vni, port, err)
	}
	if err != nil {
		return nil, err
	}
	return have, k.addresses(have, own)
}

// tunnel makes the link as it has to be, or finds it so.
func (k *kernel) tunnel(want netlink.Link, same func(netlink.Link) bool) (netlink.Link, error) {
	have, err := netlink.LinkByName(k.link)
	_, missing := errors.AsType[netlink.LinkNotFoundError](err)
	if err != nil && !missing {
		return nil, err
	}
	if err == nil && !same(have) {
		if err := netlink.LinkDel(have); err != nil {
			return nil, err
		}
		missing = true
	}
	if missing {
		if err := netlink.LinkAdd(want); err != nil {
			return nil, err
		}
		if have, err = netlink.LinkByName(k.link); err != nil {
			return nil, err
		}
	}
	if have.Attrs().MTU != want.Attrs().MTU {
		if err := netlink.LinkSetMTU(have, want.Attrs().MTU); err != nil {
			return nil, err
		}
	}
	if have.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(have); err != nil {
			return nil, err
		}
	}
	return have, nil
}

func sameTunnel(have netlink.Link, want *netlink.Vxlan) bool {
	v, ok := have.(*netlink.Vxlan)
	return ok && v.VxlanId == want.VxlanId && v.SrcAddr.Equal(want.SrcAddr) && v.Port == want.Port && !v.Learning &&
		v.HardwareAddr.String() == want.HardwareAddr.String()
}

// addresses gives our end its addresses, which this node's own programs have as their source.
func (k *kernel) addresses(link netlink.Link, own Node) error {
	want := map[netip.Addr]bool{}
	for _, r := range own.Ranges {
		want[innerOf(r)] = true
	}
	have, err := again(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	for _, h := range have {
		a, ok := netip.AddrFromSlice(h.IP)
		switch a = a.Unmap(); {
		case !ok, a.IsLinkLocalUnicast():
		case want[a]:
			delete(want, a)
		default:
			if err := netlink.AddrDel(link, &h); err != nil {
				return err
			}
		}
	}
	for a := range want {
		addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen())), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

// linkOf returns the link that has an address.
func linkOf(a netip.Addr) (netlink.Link, error) {
	all, err := again(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		if ip, ok := netip.AddrFromSlice(h.IP); ok && ip.Unmap() == a {
			return netlink.LinkByIndex(h.LinkIndex)
		}
	}
	return nil, fmt.Errorf("no link of this machine has the node's address %s", a)
}

func (k *kernel) removeTunnel() error {
	link, err := netlink.LinkByName(k.link)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// applyEnds tells the kernel the other ends: the hardware address of each inner address, and the outer address of each
// hardware address.
func (k *kernel) applyEnds(link int, want map[netip.Addr]tunnelEnd) error {
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		errs = append(errs, k.applyNeighbours(link, family, want))
	}
	outer := map[string]netip.Addr{}
	for _, e := range want {
		outer[e.MAC] = e.Outer
	}
	have, err := again(func() ([]netlink.Neigh, error) { return netlink.NeighList(link, unix.AF_BRIDGE) })
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, h := range have {
		ip, _ := netip.AddrFromSlice(h.IP)
		mac := h.HardwareAddr.String()
		if outer[mac] == ip.Unmap() {
			delete(outer, mac)
			continue
		}
		errs = append(errs, ignore(netlink.NeighDel(&h), unix.ENOENT))
	}
	for mac, to := range outer {
		hw, err := net.ParseMAC(mac)
		if err != nil {
			return err
		}
		errs = append(errs, netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: to.AsSlice(), HardwareAddr: hw,
		}))
	}
	return errors.Join(errs...)
}

func (k *kernel) applyNeighbours(link, family int, want map[netip.Addr]tunnelEnd) error {
	missing := map[netip.Addr]tunnelEnd{}
	for a, e := range want {
		if a.Is4() == (family == unix.AF_INET) {
			missing[a] = e
		}
	}
	have, err := again(func() ([]netlink.Neigh, error) { return netlink.NeighList(link, family) })
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range have {
		ip, ok := netip.AddrFromSlice(h.IP)
		ip = ip.Unmap()
		if e, wanted := missing[ip]; wanted && e.MAC == h.HardwareAddr.String() && h.State&netlink.NUD_PERMANENT != 0 {
			delete(missing, ip)
			continue
		}
		if ok && h.State&netlink.NUD_PERMANENT != 0 && !ip.IsMulticast() {
			errs = append(errs, ignore(netlink.NeighDel(&h), unix.ENOENT))
		}
	}
	for a, e := range missing {
		hw, err := net.ParseMAC(e.MAC)
		if err != nil {
			return err
		}
		errs = append(errs, netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link, Family: family, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: a.AsSlice(), HardwareAddr: hw,
		}))
	}
	return errors.Join(errs...)
}

// applyRoutes writes the routes; tunnel is the index of the tunnel.
func (k *kernel) applyRoutes(tunnel int, want map[netip.Prefix]route) error {
	have, err := k.ours()
	if err != nil {
		return err
	}
	missing := maps.Clone(want)
	var errs []error
	for _, h := range have {
		r, wanted := missing[h.Range]
		if r.Link == 0 {
			r.Link = tunnel
		}
		if wanted && r == h {
			delete(missing, h.Range)
			continue
		}
		if !wanted {
			errs = append(errs, ignore(netlink.RouteDel(h.netlink()), unix.ESRCH))
		}
	}
	for _, r := range sorted(missing) {
		if r.Link == 0 {
			r.Link = tunnel
		}
		// One that was there is replaced without a gap.
		if err := netlink.RouteReplace(r.netlink()); err != nil {
			errs = append(errs, fmt.Errorf("route to %s via %s: %w", r.Range, r.Via, err))
		}
	}
	return errors.Join(errs...)
}

// ours returns the routes that we have made.
func (k *kernel) ours() ([]route, error) {
	all, err := again(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var out []route
	for _, r := range all {
		if r.Dst == nil {
			continue
		}
		dst, ok := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		p := netip.PrefixFrom(dst.Unmap(), ones)
		if !ok || !slices.ContainsFunc(k.cluster, p.Overlaps) {
			continue // another instance's
		}
		via, _ := netip.AddrFromSlice(r.Gw)
		out = append(out, route{Range: p, Via: via.Unmap(), Link: r.LinkIndex})
	}
	return out, nil
}

func (r route) netlink() *netlink.Route {
	out := &netlink.Route{Dst: ipNet(r.Range), LinkIndex: r.Link, Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN}
	if r.Via.IsValid() {
		out.Gw, out.Flags = r.Via.AsSlice(), int(netlink.FLAG_ONLINK)
	} else if r.Range.Addr().Is4() {
		out.Scope = netlink.SCOPE_LINK
	}
	return out
}

func sorted(routes map[netip.Prefix]route) []route {
	return slices.SortedFunc(maps.Values(routes), func(a, b route) int {
		return cmp.Or(a.Range.Addr().Compare(b.Range.Addr()), cmp.Compare(a.Range.Bits(), b.Range.Bits()))
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func ignore(err, harmless error) error {
	if errors.Is(err, harmless) {
		return nil
	}
	return err
}

// again repeats a list that changed while the kernel wrote it: what it has then may lack something.
func again[T any](list func() ([]T, error)) (out []T, err error) {
	for range 10 {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}

// Remove removes what an instance has in the kernel: its tunnel, and its routes, of which the networks of pods of its
// cluster tell which they are.
func Remove(instance string, cluster []netip.Prefix) error {
	k := kernel{link: LinkName(instance), cluster: cluster}
	return errors.Join(k.applyRoutes(0, nil), k.removeTunnel())
}
