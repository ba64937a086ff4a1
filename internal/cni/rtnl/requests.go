package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func newLink(flags int) (*nl.NetlinkRequest, *nl.IfInfomsg) {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, flags|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	req.AddData(msg)
	return req, msg
}

func up(msg *nl.IfInfomsg) { msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP }

// NewBridge makes a bridge that is up. If mac is nil, it takes that of a port, and changes with
// the ports; mtu 0 means the kernel's default.
func NewBridge(name string, mac net.HardwareAddr, mtu int) *nl.NetlinkRequest {
	req, msg := newLink(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	up(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	if mtu > 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))))
	}
	if mac != nil {
		req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	req.AddData(info)
	return req
}

// Up brings a link up.
func Up(index int) *nl.NetlinkRequest {
	req, msg := newLink(0)
	msg.Index = int32(index)
	up(msg)
	return req
}

// Down takes a link down.
func Down(index int) *nl.NetlinkRequest {
	req, msg := newLink(0)
	msg.Index = int32(index)
	msg.Change = unix.IFF_UP
	return req
}

// SetMAC sets a link's MAC.
func SetMAC(index int, mac net.HardwareAddr) *nl.NetlinkRequest {
	req, msg := newLink(0)
	msg.Index = int32(index)
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	return req
}

// Promisc lets a link take every frame.
func Promisc(index int) *nl.NetlinkRequest {
	req, msg := newLink(0)
	msg.Index = int32(index)
	msg.Flags, msg.Change = unix.IFF_PROMISC, unix.IFF_PROMISC
	return req
}

// Hairpin lets a bridge port send a frame back to where it came from.
func Hairpin(index int) *nl.NetlinkRequest { return bridgePort(index, nl.IFLA_BRPORT_MODE) }

// Isolate keeps a bridge port from talking to other isolated ones.
func Isolate(index int) *nl.NetlinkRequest { return bridgePort(index, nl.IFLA_BRPORT_ISOLATED) }

func bridgePort(index, attr int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(index)
	req.AddData(msg)
	port := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	port.AddRtAttr(attr, []byte{1})
	req.AddData(port)
	return req
}

// Delete removes a link, and the other side of a veth with it.
func Delete(index int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	return req
}

// Addr gives a link an address. IPv6 addresses can be used at once, because whoever assigns them
// knows that there are no duplicates. dad requests duplicate detection all the same.
func Addr(index int, p netip.Prefix, dad bool) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	msg := nl.NewIfAddrmsg(family(p.Addr()))
	msg.Prefixlen = uint8(p.Bits())
	msg.Index = uint32(index)
	req.AddData(msg)
	ip := p.Addr().AsSlice()
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, ip))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip))
	switch {
	case p.Addr().Is4() && p.Bits() < 31: // RFC 3021: a /31 has no broadcast address
		req.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, LastAddr(p.Masked()).AsSlice()))
	case p.Addr().Is6() && !dad:
		req.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(unix.IFA_F_NODAD)))
	}
	return req
}

// Route is a route to Dst through GW; without GW, Dst is on the link itself.
type Route struct {
	Dst      netip.Prefix
	GW       netip.Addr
	MTU      int
	AdvMSS   int
	Priority int
	Table    int // 0 means the main table
	Scope    int
}

// DefaultRoute sends everything of the gateway's family to it.
func DefaultRoute(gw netip.Addr) Route {
	return Route{Dst: netip.PrefixFrom(unspecified(gw), 0), GW: gw}
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Request sets the route on a link.
func (r Route) Request(index int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	msg := nl.NewRtMsg()
	msg.Family = uint8(family(r.Dst.Addr()))
	msg.Dst_len = uint8(r.Dst.Bits())
	if r.Scope != 0 {
		msg.Scope = uint8(r.Scope)
	} else if !r.GW.IsValid() && r.Dst.Addr().Is4() {
		msg.Scope = unix.RT_SCOPE_LINK
	}
	req.AddData(msg)
	if r.Dst.Bits() > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice()))
	}
	if r.GW.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.GW.AsSlice()))
	}
	req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	if r.Priority > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(r.Priority))))
	}
	if r.Table > 0 {
		msg.Table = unix.RT_TABLE_UNSPEC
		req.AddData(nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(r.Table))))
	}
	if r.MTU > 0 || r.AdvMSS > 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		if r.MTU > 0 {
			metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.MTU)))
		}
		if r.AdvMSS > 0 {
			metrics.AddRtAttr(unix.RTAX_ADVMSS, nl.Uint32Attr(uint32(r.AdvMSS)))
		}
		req.AddData(metrics)
	}
	return req
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// LastAddr returns the highest address of the prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	if p.Addr().Is4() {
		b := p.Addr().As4()
		n := binary.BigEndian.Uint32(b[:]) | uint32(uint64(1)<<(32-p.Bits())-1)
		binary.BigEndian.PutUint32(b[:], n)
		return netip.AddrFrom4(b)
	}
	b := p.Addr().As16()
	for i := p.Bits(); i < 128; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom16(b)
}

// LinkIndex returns the index of an interface in the calling thread's namespace, or 0 if there is none.
func LinkIndex(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("interface name %q: %w", name, err)
	}
	err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req)
	if errors.Is(err, unix.ENODEV) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up interface %s: %w", name, err)
	}
	return int(req.Uint32()), nil
}

// DeleteByName removes a link of the connection's namespace, which must be the calling thread's,
// too. It is not an error if there is none.
func (c *Conn) DeleteByName(name string) error {
	index, err := LinkIndex(name)
	if err != nil || index == 0 {
		return err
	}
	if err := c.Do(Delete(index)); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}
