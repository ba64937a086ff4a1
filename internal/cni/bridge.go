package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/netns"
	"wherry.dev/internal/record"
	"wherry.dev/internal/trace"
)

// BridgeConfig describes the bridge network of one instance. Name, Table and Dir
// must differ between the instances of a machine.
type BridgeConfig struct {
	Name   string       // of the bridge, at most 15 bytes
	Table  string       // of nftables
	Subnet netip.Prefix // the pods' addresses; the first one is the bridge's own
	MTU    int          // 0 is 1500
	Dir    string       // keeps the leases
}

// Bridge is the in-process network: a bridge on the host, a veth pair for each pod.
type Bridge struct {
	cfg    BridgeConfig
	leases *leases
	host   *rtnl
	index  int

	mu    sync.Mutex // guards rules; held while the kernel takes them
	rules ruleset
}

// bridgeNetwork is the name that attachments carry.
const bridgeNetwork = "wherry"

// OpenBridge makes the bridge and its nftables table, or takes over those of an
// earlier run. live are the sandboxes that still run, by ID: they keep their
// addresses, host ports and service addresses without a gap; other leases are
// released.
func OpenBridge(ctx context.Context, cfg BridgeConfig, live map[string]Pod) (*Bridge, error) {
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if !cfg.Subnet.IsValid() || !cfg.Subnet.Addr().Is4() || cfg.Subnet.Bits() > 29 {
		return nil, fmt.Errorf("pod network %s: an IPv4 network of at least /29 is needed", cfg.Subnet)
	}
	l, err := openLeases(cfg.LeaseDir(), cfg.Subnet, linkGone)
	if err != nil {
		return nil, fmt.Errorf("open address leases: %w", err)
	}
	host, err := openRTNL()
	if err != nil {
		return nil, err
	}
	b := &Bridge{cfg: cfg, leases: l, host: host}
	b.rules = ruleset{table: cfg.Table, bridge: cfg.Name, subnet: cfg.Subnet.Masked(), ports: map[string][]forward{}}
	if err := errors.Join(b.recover(live), b.ensure(ctx)); err != nil {
		return nil, errors.Join(fmt.Errorf("set up bridge %s: %w", cfg.Name, err), host.Close())
	}
	return b, nil
}

// Close lets go of the routing socket; the network stays.
func (b *Bridge) Close() error { return b.host.Close() }

// Gateway is the bridge's own address, by which pods reach the host.
func (b *Bridge) Gateway() netip.Addr { return b.leases.gateway() }

func (b *Bridge) ensure(ctx context.Context) error {
	gw := b.leases.gateway()
	err := b.host.do(bridgeReq(b.cfg.Name, macOf(gw), b.cfg.MTU))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if b.index, err = linkIndex(b.cfg.Name); err != nil {
		return err
	}
	if err := b.host.do(upReq(b.index), addrReq(b.index, netip.PrefixFrom(gw, b.cfg.Subnet.Bits()))); err != nil {
		return err
	}
	if err := b.apply(ctx); err != nil { // the guard rule goes before route_localnet
		return err
	}
	for _, s := range []string{"net/ipv4/ip_forward", "net/ipv4/conf/" + b.cfg.Name + "/route_localnet"} {
		if err := enableSysctl(s); err != nil {
			return err
		}
	}
	return nil
}

// enableSysctl writes 1 only where it is not 1: it may be read-only and right already.
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

func (b *Bridge) apply(ctx context.Context) error { return nft(ctx, b.rules.render()) }

// macOf derives a locally administered MAC from the address, so that an address
// that is used again keeps its MAC and no neighbour table goes stale.
func macOf(a netip.Addr) net.HardwareAddr {
	ip := a.As4()
	return net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], ip[3]}
}

// linkName is the host side of a sandbox's veth pair.
func linkName(id string) string {
	const prefix = "veth"
	return prefix + id[:min(len(id), unix.IFNAMSIZ-1-len(prefix))]
}

// Setup gives the pod an address, eth0, a default route and its host ports.
func (b *Bridge) Setup(ctx context.Context, pod Pod) (at Attachment, err error) {
	ctx, span := trace.Start(ctx, "network: setup")
	defer func() { _ = trace.End(span, err) }()
	if _, err := b.leases.reclaim(8); err != nil {
		return at, err
	}
	link := linkName(pod.ID)
	addr, err := b.leases.acquire(pod.ID, link)
	if err != nil {
		return at, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.undo(context.WithoutCancel(ctx), pod, link))
		}
	}()
	if err := b.plug(pod.NetNS, link, addr); err != nil {
		return at, fmt.Errorf("connect sandbox %s to bridge %s: %w", pod.ID, b.cfg.Name, err)
	}
	if err := b.openPorts(ctx, pod, addr); err != nil {
		return at, err
	}
	return Attachment{Network: bridgeNetwork, IPs: []netip.Addr{addr}, MAC: macOf(addr).String(), Link: link}, nil
}

// undo takes a failed Setup back, the link at once because the namespace may live on.
func (b *Bridge) undo(ctx context.Context, pod Pod, link string) error {
	return errors.Join(b.deleteLink(link), b.Teardown(ctx, pod))
}

// plug makes the veth pair and configures the pod's side of it.
func (b *Bridge) plug(path, link string, addr netip.Addr) error {
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer func() { _ = unix.Close(ns) }()
	veth := vethReq{host: link, bridge: b.index, peer: IfName, mac: macOf(addr), netns: ns, mtu: b.cfg.MTU}
	err = b.host.do(veth.request())
	if errors.Is(err, unix.EEXIST) { // of a run that was killed
		if err := b.deleteLink(link); err != nil {
			return err
		}
		err = b.host.do(veth.request())
	}
	if err != nil {
		return fmt.Errorf("make veth pair %s: %w", link, err)
	}
	index, err := linkIndex(link)
	if err != nil {
		return err
	}
	if err := b.host.do(hairpinReq(index)); err != nil {
		return fmt.Errorf("set hairpin mode on %s: %w", link, err)
	}
	return netns.Do(func() error { return b.configure(addr) }, path)
}

// configure runs inside the pod's namespace.
func (b *Bridge) configure(addr netip.Addr) error {
	c, err := openRTNL()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	eth0, err := linkIndex(IfName)
	if err != nil {
		return err
	}
	const lo = 1 // the first interface of every namespace
	err = c.do(upReq(lo), addrReq(eth0, netip.PrefixFrom(addr, b.cfg.Subnet.Bits())), upReq(eth0),
		defaultRouteReq(eth0, b.leases.gateway()))
	if err != nil {
		return fmt.Errorf("configure %s: %w", IfName, err)
	}
	return nil
}

func (b *Bridge) deleteLink(name string) error {
	index, err := linkIndex(name)
	if err != nil || index == 0 {
		return err
	}
	if err := b.host.do(delLinkReq(index)); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

func (b *Bridge) openPorts(ctx context.Context, pod Pod, addr netip.Addr) error {
	fs := forwards(pod, addr)
	if len(fs) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.rules.conflict(pod.ID, fs); err != nil {
		return err
	}
	b.rules.ports[pod.ID] = fs
	if err := b.apply(ctx); err != nil {
		delete(b.rules.ports, pod.ID)
		return fmt.Errorf("open host ports of sandbox %s: %w", pod.ID, err)
	}
	return nil
}

// Teardown closes the pod's host ports and gives its address back as soon as the
// kernel has removed its veth. The caller drops the namespace.
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
	return b.leases.release(pod.ID)
}

// recover fills the rules with the host ports of the pods that live and releases
// the leases of all others.
func (b *Bridge) recover(live map[string]Pod) error {
	for id, addr := range b.leases.owners() {
		pod, ok := live[id]
		if !ok {
			if err := b.leases.release(id); err != nil {
				return err
			}
			continue
		}
		if fs := forwards(pod, addr); len(fs) > 0 {
			b.rules.ports[id] = fs
		}
	}
	return b.loadServices()
}

// forwards picks the pod's ports that the host opens (IPv4 so far).
func forwards(pod Pod, addr netip.Addr) []forward {
	var fs []forward
	for _, p := range pod.Ports {
		if p.HostPort != 0 && (!p.HostIP.IsValid() || p.HostIP.Is4()) {
			fs = append(fs, forward{p, addr})
		}
	}
	return fs
}

// SetService leads connections of the host and of this bridge's pods to the
// service's backends; no backends removes it. Other instances' pods do not see it.
func (b *Bridge) SetService(ctx context.Context, s Service) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := make([]Service, 0, len(b.rules.services)+1)
	for _, x := range b.rules.services {
		if x.VIP != s.VIP || x.Port != s.Port {
			kept = append(kept, x)
		}
	}
	if len(s.Backends) > 0 {
		kept = append(kept, s)
	}
	if err := b.storeServices(kept); err != nil {
		return err
	}
	b.rules.services = kept
	if err := b.apply(ctx); err != nil {
		return fmt.Errorf("set service address %s:%d: %w", s.VIP, s.Port, err)
	}
	return nil
}

// The services are kept on disk, so that a restart of Wherry does not interrupt them.
func (b *Bridge) servicesPath() string { return filepath.Join(b.cfg.Dir, "services.json") }

func (b *Bridge) storeServices(s []Service) error {
	return record.Write(b.servicesPath(), 1, s)
}

func (b *Bridge) loadServices() error {
	_, err := record.Read(b.servicesPath(), &b.rules.services)
	var corrupt *record.CorruptError
	if errors.Is(err, os.ErrNotExist) || errors.As(err, &corrupt) {
		return nil // set again by whoever knows the services
	}
	return err
}

// Remove takes the whole network of the instance away: table, veths, bridge, leases.
// It needs no open Bridge, so it also works for an instance that is not running.
func (cfg BridgeConfig) Remove(ctx context.Context) error {
	if err := deleteTable(ctx, cfg.Table); err != nil {
		return err
	}
	host, err := openRTNL()
	if err != nil {
		return err
	}
	b := &Bridge{cfg: cfg, host: host}
	defer func() { _ = host.Close() }()
	l, err := openLeases(cfg.LeaseDir(), cfg.Subnet, linkGone)
	if err != nil {
		return err
	}
	for owner := range l.owners() {
		if err := l.release(owner); err != nil {
			return err
		}
	}
	for _, link := range l.links() {
		if err := b.deleteLink(link); err != nil {
			return err
		}
	}
	if err := b.deleteLink(cfg.Name); err != nil {
		return err
	}
	return os.RemoveAll(cfg.Dir)
}
