package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"wherry.dev/internal/cni/nft"
	"wherry.dev/internal/cni/rtnl"
	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/netns"
	"wherry.dev/internal/trace"
)

// BridgeConfig describes the bridge network of one instance. Instances on the same machine must
// have different Names, Tables and Dirs.
type BridgeConfig struct {
	Name    string         // of the bridge, at most 15 bytes
	Table   string         // name of the nftables table
	Subnets []netip.Prefix // the pods' addresses, one network per IP family; the first address is the bridge's own
	Cluster []netip.Prefix // the networks of all nodes' pods, which see each other's own addresses
	Overlay string         // the link to other nodes' pods whose packets may be smaller than the bridge's; "" if there is none
	MTU     int            // 0 means 1500
	Dir     string         // folder of the leases
	Guard   Guard          `json:"-"` // nil admits everybody
}

// Guard is told of pods' addresses.
type Guard interface {
	// Admit is called before anything runs in a pod that has got addresses. An error keeps it from
	// starting.
	Admit(ctx context.Context, pod Pod, addresses []netip.Addr) error
	// Forget is called before the addresses of a sandbox are free for others.
	Forget(id string)
}

// Bridge is the in-process network: a bridge on the host and a veth pair per pod.
type Bridge struct {
	cfg   BridgeConfig
	pools []*leases // one per subnet
	host  *rtnl.Conn
	index int

	mu    sync.Mutex // guards rules; held while they are loaded into the kernel
	rules ruleset
}

// bridgeNetwork is the network name in attachments.
const bridgeNetwork = "wherry"

// OpenBridge makes the bridge and its nftables table, or takes over those of an earlier run. live
// are the sandboxes that still run, by ID: they keep their addresses, host ports and service
// addresses without interruption. Other leases are released.
func OpenBridge(ctx context.Context, cfg BridgeConfig, live map[string]Pod) (*Bridge, error) {
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if err := checkSubnets(cfg.Subnets); err != nil {
		return nil, err
	}
	pools, err := cfg.openPools()
	if err != nil {
		return nil, fmt.Errorf("open address leases: %w", err)
	}
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	b := &Bridge{cfg: cfg, pools: pools, host: host}
	b.rules = ruleset{table: cfg.Table, bridge: cfg.Name, ports: map[string][]forward{}}
	for _, s := range cfg.Subnets {
		b.rules.subnets = append(b.rules.subnets, s.Masked())
	}
	b.rules.cluster, b.rules.overlay = cfg.Cluster, cfg.Overlay
	if err := errors.Join(b.recover(live), b.ensure(ctx)); err != nil {
		return nil, errors.Join(fmt.Errorf("set up bridge %s: %w", cfg.Name, err), host.Close())
	}
	return b, nil
}

// openNone returns a Bridge without a link, for machines where only CNI plugins connect pods. It
// removes the table that older versions had there, for services.
func openNone(ctx context.Context, cfg BridgeConfig) (*Bridge, error) {
	if err := cfg.RemoveTable(ctx); err != nil {
		return nil, err
	}
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	return &Bridge{cfg: cfg, host: host, rules: ruleset{table: cfg.Table}}, nil
}

// busy reports whether a pod has an address.
func (b *Bridge) busy() bool {
	return slices.ContainsFunc(b.pools, func(l *leases) bool { return len(l.owners()) > 0 })
}

// RemoveTable removes the nftables table, if there is one.
func (cfg BridgeConfig) RemoveTable(ctx context.Context) error {
	if cfg.Table == "" {
		return nil
	}
	return nft.DeleteTable(ctx, "inet", cfg.Table)
}

// Check returns an error if a pod no longer has what Setup gave it.
func (b *Bridge) Check(pod Pod) error {
	var want []netip.Addr
	for _, l := range b.pools {
		a, ok := l.owners()[pod.ID]
		if !ok {
			return fmt.Errorf("sandbox %s has no address from %s", pod.ID, l.subnet)
		}
		want = append(want, a)
	}
	gone, err := linkGone(linkName(pod.ID))
	if err != nil {
		return fmt.Errorf("cannot tell whether sandbox %s is connected to bridge %s: %w", pod.ID, b.cfg.Name, err)
	}
	if gone {
		return fmt.Errorf("sandbox %s is not connected to bridge %s: %s is gone", pod.ID, b.cfg.Name, linkName(pod.ID))
	}
	return netns.Do(func() error { return rtnl.HasAddrs(IfName, want) }, pod.NetNS)
}

func checkSubnets(subnets []netip.Prefix) error {
	if len(subnets) == 0 || len(subnets) > 2 || len(subnets) == 2 && subnets[0].Addr().Is4() == subnets[1].Addr().Is4() {
		return fmt.Errorf("pod networks %v: want one network, or one IPv4 and one IPv6 network", subnets)
	}
	for _, s := range subnets {
		if !s.IsValid() || s.Addr().BitLen()-s.Bits() < 3 {
			return fmt.Errorf("pod network %s is too small: it must have at least 8 addresses (/29, or /125 for IPv6)", s)
		}
	}
	return nil
}

func (cfg BridgeConfig) openPools() ([]*leases, error) {
	var pools []*leases
	for _, s := range cfg.Subnets {
		l, err := openLeases(cfg.leaseDir(s), s, linkGone)
		if err != nil {
			return nil, err
		}
		pools = append(pools, l)
	}
	return pools, nil
}

// leaseDir returns the folder of the leases of a subnet.
func (cfg BridgeConfig) leaseDir(s netip.Prefix) string {
	if s.Addr().Is4() {
		return filepath.Join(cfg.Dir, "leases")
	}
	return filepath.Join(cfg.Dir, "leases6")
}

func linkGone(name string) (bool, error) {
	i, err := rtnl.LinkIndex(name)
	return err == nil && i == 0, err
}

// Close closes the routing socket; the network stays.
func (b *Bridge) Close() error { return b.host.Close() }

// Gateway returns the bridge's own address in the first subnet, through which pods reach the
// host.
func (b *Bridge) Gateway() netip.Addr { return b.pools[0].gateway() }

func (b *Bridge) ensure(ctx context.Context) error {
	err := b.host.Do(rtnl.NewBridge(b.cfg.Name, rtnl.MACOf(b.Gateway()), b.cfg.MTU))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if b.index, err = rtnl.LinkIndex(b.cfg.Name); err != nil {
		return err
	}
	reqs := []*nl.NetlinkRequest{rtnl.Up(b.index)}
	for _, l := range b.pools {
		reqs = append(reqs, rtnl.Addr(b.index, netip.PrefixFrom(l.gateway(), l.subnet.Bits()), false))
	}
	if err := b.host.Do(reqs...); err != nil {
		return err
	}
	if err := b.apply(ctx); err != nil { // the guard rule must precede route_localnet
		return err
	}
	for _, s := range b.sysctls() {
		if err := enableSysctl(s); err != nil {
			return err
		}
	}
	return nil
}

// sysctls returns the switches that the bridge needs on.
func (b *Bridge) sysctls() []string {
	var names []string
	for _, l := range b.pools {
		if l.subnet.Addr().Is4() {
			names = append(names, "net/ipv4/ip_forward", "net/ipv4/conf/"+b.cfg.Name+"/route_localnet")
		} else {
			names = append(names, "net/ipv6/conf/all/forwarding")
		}
	}
	return names
}

// enableSysctl writes 1 only if the value differs: the file may be read-only and already right.
func enableSysctl(name string) error {
	path, err := netns.SysctlPath(name)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && len(have) > 0 && have[0] == '1' {
		return nil
	}
	return os.WriteFile(path, []byte("1"), 0)
}

func (b *Bridge) apply(ctx context.Context) error { return nft.Run(ctx, b.rules.render()) }

// linkName returns the name of the host side of a sandbox's veth pair.
func linkName(id string) string {
	const prefix = "veth"
	return prefix + id[:min(len(id), unix.IFNAMSIZ-1-len(prefix))]
}

// Setup gives the pod an address, eth0, a default route and its host ports.
func (b *Bridge) Setup(ctx context.Context, pod Pod) (at Attachment, err error) {
	ctx, span := trace.Start(ctx, "network: setup")
	defer func() { _ = trace.End(span, err) }()
	link := linkName(pod.ID)
	defer func() {
		if err != nil {
			err = errors.Join(err, b.undo(context.WithoutCancel(ctx), pod, link))
		}
	}()
	addrs, err := b.lease(pod.ID, link)
	if err != nil {
		return at, err
	}
	failpoint.At("bridge-leased")
	if err := b.plug(pod.NetNS, link, addrs); err != nil {
		return at, fmt.Errorf("connect sandbox %s to bridge %s: %w", pod.ID, b.cfg.Name, err)
	}
	failpoint.At("bridge-plugged")
	if err := b.openPorts(ctx, pod, addrs); err != nil {
		return at, err
	}
	failpoint.At("bridge-ports")
	if err := shape(link, pod); err != nil {
		return at, err
	}
	if g := b.cfg.Guard; g != nil {
		if err := g.Admit(ctx, pod, addrs); err != nil {
			return at, err
		}
	}
	return Attachment{Network: bridgeNetwork, IPs: addrs, MAC: rtnl.MACOf(addrs[0]).String(), Link: link}, nil
}

// lease leases an address from every subnet.
func (b *Bridge) lease(owner, link string) ([]netip.Addr, error) {
	addrs := make([]netip.Addr, len(b.pools))
	for i, l := range b.pools {
		if _, err := l.reclaim(8); err != nil {
			return nil, err
		}
		var err error
		if addrs[i], err = l.acquire(owner, link); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

// undo undoes a failed Setup. It removes the link at once, because the namespace may live on.
func (b *Bridge) undo(ctx context.Context, pod Pod, link string) error {
	return errors.Join(b.host.DeleteByName(link), b.Teardown(ctx, pod))
}

// plug makes the veth pair and configures the pod's side of it. The pod has routes through the bridge's
// own addresses only, to its neighbours, too: what pods say to each other passes the firewall, where
// services are translated, there and back, and network policies hold.
func (b *Bridge) plug(path, link string, addrs []netip.Addr) error {
	port := rtnl.Port{
		Host: link, Bridge: b.index, Hairpin: true, Name: IfName, MAC: rtnl.MACOf(addrs[0]), MTU: b.cfg.MTU,
	}
	for i, l := range b.pools {
		port.Addrs = append(port.Addrs, single(addrs[i]))
		port.Routes = append(port.Routes, rtnl.Route{Dst: single(l.gateway())}, rtnl.DefaultRoute(l.gateway()))
	}
	err := b.host.Plug(path, port)
	if errors.Is(err, unix.EEXIST) { // left by a run that was killed
		if err := b.host.DeleteByName(link); err != nil {
			return err
		}
		err = b.host.Plug(path, port)
	}
	return err
}

// single returns the network that has only this address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func (b *Bridge) openPorts(ctx context.Context, pod Pod, addrs []netip.Addr) error {
	fs := forwards(pod, addrs)
	if len(fs) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.rules.conflict(pod.ID, fs); err != nil {
		return err
	}
	_, again := b.rules.ports[pod.ID]
	b.rules.ports[pod.ID] = fs
	err := nft.Run(ctx, b.rules.renderNew(fs))
	if again || errors.Is(err, nft.ErrExists) || errors.Is(err, nft.ErrNotFound) { // not the way we left it
		err = b.apply(ctx)
	}
	if err != nil {
		delete(b.rules.ports, pod.ID)
		return fmt.Errorf("open host ports of sandbox %s: %w", pod.ID, err)
	}
	var udp []uint16
	for _, f := range fs {
		if f.Protocol == "udp" {
			udp = append(udp, f.HostPort)
		}
	}
	return rtnl.ForgetUDP(udp)
}

// Teardown closes the pod's host ports and releases its address as soon as the kernel has removed
// its veth. The caller drops the namespace.
func (b *Bridge) Teardown(ctx context.Context, pod Pod) error {
	b.mu.Lock()
	if old, ok := b.rules.ports[pod.ID]; ok {
		delete(b.rules.ports, pod.ID)
		if err := b.apply(ctx); err != nil {
			b.rules.ports[pod.ID] = old
			b.mu.Unlock()
			return fmt.Errorf("close host ports of sandbox %s: %w", pod.ID, err)
		}
	}
	b.mu.Unlock()
	failpoint.At("bridge-ports-closed")
	if b.cfg.Guard != nil {
		b.cfg.Guard.Forget(pod.ID)
	}
	return b.release(pod.ID)
}

func (b *Bridge) release(owner string) error {
	for _, l := range b.pools {
		if err := l.release(owner); err != nil {
			return err
		}
	}
	return nil
}

// recover fills the rules with the host ports of live pods, restores their lost leases, and
// releases the leases of all others.
func (b *Bridge) recover(live map[string]Pod) error {
	for _, l := range b.pools {
		for id := range l.owners() {
			if _, ok := live[id]; ok {
				continue
			}
			if err := l.release(id); err != nil {
				return err
			}
		}
		for id, pod := range live {
			for _, a := range pod.IPs {
				if err := l.adopt(id, linkName(id), a); err != nil {
					return err
				}
			}
		}
	}
	for id, pod := range live {
		var addrs []netip.Addr
		for _, l := range b.pools {
			if a, ok := l.owners()[id]; ok {
				addrs = append(addrs, a)
			}
		}
		if fs := forwards(pod, addrs); len(fs) > 0 {
			b.rules.ports[id] = fs
		}
	}
	return nil
}

// forwards returns the host ports that lead to the pod, each in the IP families that its host
// address and the pod have in common.
func forwards(pod Pod, addrs []netip.Addr) []forward {
	var fs []forward
	for _, p := range pod.Ports {
		if p.HostPort == 0 {
			continue
		}
		for _, a := range addrs {
			if !p.HostIP.IsValid() || p.HostIP.Unmap().Is4() == a.Is4() {
				p.HostIP = p.HostIP.Unmap()
				fs = append(fs, forward{p, a})
			}
		}
	}
	return fs
}

// Remove removes the whole network of the instance: table, veths, bridge, leases. It needs no
// open Bridge, so it also works for an instance that is not running.
func (cfg BridgeConfig) Remove(ctx context.Context) error {
	host, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	pools, err := cfg.openPools()
	if err != nil {
		return err
	}
	for _, l := range pools {
		for owner := range l.owners() {
			if err := l.release(owner); err != nil {
				return err
			}
		}
		for _, link := range l.links() {
			if err := host.DeleteByName(link); err != nil {
				return err
			}
		}
	}
	if err := cfg.RemoveNames(ctx); err != nil {
		return err
	}
	return os.RemoveAll(cfg.Dir)
}

// RemoveNames removes the table, the bridge and what is plugged into it, whether or not there is
// a file about them.
func (cfg BridgeConfig) RemoveNames(ctx context.Context) error {
	if err := nft.DeleteTable(ctx, "inet", cfg.Table); err != nil {
		return err
	}
	ports, err := portsOf(cfg.Name)
	if err != nil {
		return err
	}
	host, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	for _, link := range append(ports, cfg.Name) {
		if err := host.DeleteByName(link); err != nil {
			return err
		}
	}
	return nil
}

// portsOf lists what is plugged into a bridge; a missing bridge has nothing.
func portsOf(bridge string) ([]string, error) {
	br, err := netlink.LinkByName(bridge)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", bridge, err)
	}
	for range 10 {
		links, err := netlink.LinkList()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue // links came or went in the meantime
		}
		if err != nil {
			return nil, fmt.Errorf("list links: %w", err)
		}
		var ports []string
		for _, l := range links {
			if l.Attrs().MasterIndex == br.Attrs().Index {
				ports = append(ports, l.Attrs().Name)
			}
		}
		return ports, nil
	}
	return nil, errors.New("list links: they keep changing")
}
