package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rtnl is a routing socket. It belongs to the network namespace of the thread that
// opened it, wherever it is used later (netlink(7)).
type rtnl struct {
	mu  sync.Mutex
	fd  int
	seq uint32
}

func openRTNL() (*rtnl, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bind routing socket: %w", err)
	}
	return &rtnl{fd: fd}, nil
}

func (c *rtnl) Close() error { return unix.Close(c.fd) }

// do sends the requests as one datagram and waits for the answer of each. The
// kernel handles them in order; the first error is returned, the rest still run.
func (c *rtnl) do(reqs ...*nl.NetlinkRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var batch []byte
	first := c.seq + 1
	for _, r := range reqs {
		c.seq++
		r.Seq = c.seq
		batch = append(batch, r.Serialize()...)
		for len(batch)%unix.NLMSG_ALIGNTO != 0 {
			batch = append(batch, 0)
		}
	}
	if err := unix.Sendto(c.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink send: %w", err)
	}
	return c.acks(first, len(reqs))
}

func (c *rtnl) acks(first uint32, want int) error {
	buf := make([]byte, 16<<10)
	var failed error
	for want > 0 {
		n, err := recvRetry(c.fd, buf)
		if err != nil {
			return fmt.Errorf("netlink receive: %w", err)
		}
		for msg := buf[:n]; len(msg) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(msg))
			typ, seq := binary.NativeEndian.Uint16(msg[4:]), binary.NativeEndian.Uint32(msg[8:])
			if size < unix.SizeofNlMsghdr || size > len(msg) {
				return errors.New("netlink receive: truncated message")
			}
			if typ == unix.NLMSG_ERROR && seq >= first && size >= unix.SizeofNlMsghdr+4 {
				want--
				errno := int32(binary.NativeEndian.Uint32(msg[unix.SizeofNlMsghdr:]))
				if errno != 0 && failed == nil {
					failed = unix.Errno(-errno)
				}
			}
			msg = msg[min(len(msg), (size+3)&^3):]
		}
	}
	return failed
}

func recvRetry(fd int, buf []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}

func newLink(flags int) (*nl.NetlinkRequest, *nl.IfInfomsg) {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, flags|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	req.AddData(msg)
	return req, msg
}

func up(msg *nl.IfInfomsg) { msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP }

// vethReq makes a pair whose host side is up and in the bridge, and whose other side
// is born inside the namespace: moving it there would cost an RCU grace period.
type vethReq struct {
	host   string
	bridge int
	peer   string
	mac    net.HardwareAddr
	netns  int // open fd of the pod's namespace
	mtu    int
}

func (v vethReq) request() *nl.NetlinkRequest {
	req, msg := newLink(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	up(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.host)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.mtu))))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(v.bridge))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	peer := data.AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC) // not up yet: ENOTCONN
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.peer))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, v.mac)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(v.netns)))
	req.AddData(info)
	return req
}

// bridgeReq makes a bridge that is up, with a MAC of its own: by default it would
// change with the ports.
func bridgeReq(name string, mac net.HardwareAddr, mtu int) *nl.NetlinkRequest {
	req, msg := newLink(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	up(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	req.AddData(info)
	return req
}

// hairpinReq lets a bridge port send a frame back to where it came from.
func hairpinReq(index int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(index)
	req.AddData(msg)
	port := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	port.AddRtAttr(nl.IFLA_BRPORT_MODE, []byte{1})
	req.AddData(port)
	return req
}

func upReq(index int) *nl.NetlinkRequest {
	req, msg := newLink(0)
	msg.Index = int32(index)
	up(msg)
	return req
}

func delLinkReq(index int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	return req
}

func addrReq(index int, p netip.Prefix) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	family := unix.AF_INET6
	if p.Addr().Is4() {
		family = unix.AF_INET
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Prefixlen = uint8(p.Bits())
	msg.Index = uint32(index)
	req.AddData(msg)
	ip := p.Addr().AsSlice()
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, ip))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip))
	if p.Addr().Is4() {
		req.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, lastAddr(p.Masked()).AsSlice()))
	}
	return req
}

// defaultRouteReq sends everything to the gateway.
func defaultRouteReq(index int, gw netip.Addr) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	msg := nl.NewRtMsg()
	msg.Family = unix.AF_INET6
	if gw.Is4() {
		msg.Family = unix.AF_INET
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, gw.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	return req
}

// linkIndex finds an interface in the calling thread's namespace; 0 is none.
func linkIndex(name string) (int, error) {
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

func linkGone(name string) (bool, error) {
	i, err := linkIndex(name)
	return err == nil && i == 0, err
}
