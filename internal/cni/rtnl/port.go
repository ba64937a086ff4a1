package rtnl

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/netns"
)

// Port is a pod's connection to a bridge: a veth pair with one side as a port of the bridge and
// the other in the pod's namespace.
type Port struct {
	Host     string // name of the bridge's side
	Bridge   int    // index of the bridge
	Hairpin  bool
	Isolated bool

	Name   string // of the pod's side
	MAC    net.HardwareAddr
	MTU    int // 0 means the kernel's default
	Addrs  []netip.Prefix
	Routes []Route
	DAD    bool // detect duplicates of IPv6 addresses
}

// Plug makes the port. path is that of the pod's namespace. The calling thread must be in the
// connection's namespace. unix.EEXIST means that one of the two names is taken; after any other
// error the bridge's side may exist.
func (c *Conn) Plug(path string, p Port) error {
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer func() { _ = unix.Close(ns) }()
	if err := c.Do(p.veth(ns)); err != nil {
		return fmt.Errorf("create veth pair %s: %w", p.Host, err)
	}
	index, err := LinkIndex(p.Host)
	if err != nil {
		return err
	}
	if p.Hairpin {
		if err := c.Do(Hairpin(index)); err != nil {
			return fmt.Errorf("set hairpin mode on %s: %w", p.Host, err)
		}
	}
	if p.Isolated {
		if err := c.Do(Isolate(index)); err != nil {
			return fmt.Errorf("isolate %s: %w", p.Host, err)
		}
	}
	return netns.Do(p.configure, path)
}

// veth returns the request for a pair whose host side is up and in the bridge, and whose other
// side is created inside the namespace.
func (p Port) veth(ns int) *nl.NetlinkRequest {
	req, msg := newLink(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	up(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.Host)))
	if p.MTU > 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.MTU))))
	}
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(p.Bridge))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	peer := data.AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC) // not up yet: ENOTCONN
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.Name))
	if p.MTU > 0 {
		peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.MTU)))
	}
	if p.MAC != nil {
		peer.AddRtAttr(unix.IFLA_ADDRESS, p.MAC)
	}
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns)))
	req.AddData(info)
	return req
}

// configure runs inside the pod's namespace. It sets up loopback, addresses and routes in one
// datagram.
func (p Port) configure() error {
	c, err := Open()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	index, err := LinkIndex(p.Name)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(p.Addrs, func(a netip.Prefix) bool { return a.Addr().Is6() }) {
		if err := enableIPv6(p.Name); err != nil {
			return err
		}
	}
	const lo = 1 // the first interface of every namespace
	reqs := []*nl.NetlinkRequest{Up(lo)}
	for _, a := range p.Addrs {
		reqs = append(reqs, Addr(index, a, p.DAD))
	}
	reqs = append(reqs, Up(index))
	for _, r := range p.Routes {
		reqs = append(reqs, r.Request(index))
	}
	if err := c.Do(reqs...); err != nil {
		return fmt.Errorf("configure %s: %w", p.Name, err)
	}
	return nil
}

// enableIPv6 overrides a machine-wide default that disables IPv6 on new links.
func enableIPv6(link string) error {
	path := "/proc/sys/net/ipv6/conf/" + link + "/disable_ipv6"
	have, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("this kernel has no IPv6; remove the IPv6 network from the configuration")
	}
	if err != nil || len(have) > 0 && have[0] == '0' {
		return err
	}
	return os.WriteFile(path, []byte("0"), 0)
}
