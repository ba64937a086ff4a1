package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/config"
	"wherry.dev/internal/controller/clusterdns"
	"wherry.dev/internal/dns"
)

// dnsPort is the DNS server's port on a node whose pods have no bridge of ours: 53 of the node's own
// address often belongs to somebody. Any other will do if this one is taken.
const dnsPort = 10053

// listenFunc opens a DNS server's sockets, on the node's own bridge if pods with those networks are there.
type listenFunc = func(ctx context.Context, podCIDR string) (*dns.Server, netip.AddrPort, error)

// newDNS makes the cluster's DNS server of this node, and notes what has to be published of it.
//
// It listens where the node's pods can reach it and as few others as possible: on the bridge's own
// address or, if pods are on somebody else's network, on the node's.
func (d *Daemon) newDNS(ctx context.Context, f informers.SharedInformerFactory) ([]service, error) {
	vip, ok, err := d.cfg.DNSAddress()
	if err != nil || !ok {
		return nil, err
	}
	if !d.cfg.Role.HasNode() {
		d.dns = &clusterdns.Config{IP: vip}
		return nil, nil
	}
	records, err := dns.NewRecords(f)
	if err != nil {
		return nil, err
	}
	clients, err := newDNSClients(d.cfg.ClusterNetworks(), f.Core().V1().Pods().Informer())
	if err != nil {
		return nil, err
	}
	resolvers, stubs, err := d.cfg.DNSServers()
	if err != nil {
		return nil, err
	}
	zone := dns.NewZone(d.cfg.ClusterDomain, []netip.Addr{vip}, records)
	listen := func(ctx context.Context, podCIDR string) (*dns.Server, netip.AddrPort, error) {
		server := &dns.Server{Zone: zone, Allowed: clients.allowed}
		at, err := d.listenDNS(ctx, server, vip, podCIDR)
		server.Forwarder = dns.NewForwarder(dns.ForwarderConfig{
			ResolvConf: "/etc/resolv.conf", Resolvers: resolvers, Stubs: stubs,
			Self: func(r netip.AddrPort) bool { return r == at || r.Addr() == vip },
		})
		return server, at, err
	}
	if d.several { // another server may be the one that publishes it
		d.dns = &clusterdns.Config{IP: vip}
	}
	if d.several || !d.cfg.Role.HasServer() {
		return d.dnsOfJoined(f, listen)
	}
	server, at, err := listen(ctx, d.cfg.PodCIDR)
	if err != nil {
		return nil, err
	}
	d.dns = &clusterdns.Config{IP: vip, Node: d.cfg.NodeName, Server: at}
	return []service{{name: "dns", run: server.Run}}, nil
}

// listenDNS opens the server's sockets, on another port than the usual one if that is taken.
func (d *Daemon) listenDNS(ctx context.Context, server *dns.Server, vip netip.Addr, podCIDR string) (netip.AddrPort, error) {
	ip, port, err := d.dnsListener(vip, podCIDR)
	if err != nil {
		return netip.AddrPort{}, err
	}
	got, err := server.Listen(ctx, ip, port)
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
		klog.FromContext(ctx).Info("The usual port of the DNS server is taken, using another one", "address", netip.AddrPortFrom(ip, port), "err", err)
		got, err = server.Listen(ctx, ip, 0)
	}
	return netip.AddrPortFrom(ip, got), err
}

// dnsListener returns where the server should listen: an address of the same family as the service's.
func (d *Daemon) dnsListener(vip netip.Addr, podCIDR string) (netip.Addr, uint16, error) {
	if d.cfg.RuntimeEndpoint == "" && d.cfg.NetworkMode != cluster.ModeNone {
		first, second, err := config.PodNetworks(podCIDR)
		if err != nil {
			return netip.Addr{}, 0, err
		}
		for _, p := range []netip.Prefix{first, second} {
			if p.IsValid() && p.Addr().Is4() == vip.Is4() {
				return p.Masked().Addr().Next(), 53, nil
			}
		}
	}
	ips := d.cfg.NodeIPs()
	if same := slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Is4() == vip.Is4() }); same > 0 {
		return ips[same], dnsPort, nil
	}
	return ips[0], dnsPort, nil
}

// dnsClients knows who may ask the DNS server: pods, wherever their network is, and the node.
type dnsClients struct {
	networks []netip.Prefix
	pods     cache.Indexer

	mu   sync.Mutex
	own  []netip.Addr // the node's addresses
	read time.Time
}

// byPodIP is the index of pods by their addresses.
const byPodIP = "wherry/pod-ip"

func newDNSClients(networks []netip.Prefix, pods cache.SharedIndexInformer) (*dnsClients, error) {
	c := &dnsClients{networks: networks, pods: pods.GetIndexer()}
	return c, pods.AddIndexers(cache.Indexers{byPodIP: func(obj any) ([]string, error) {
		pod, ok := obj.(*v1.Pod)
		if !ok {
			return nil, nil
		}
		out := make([]string, 0, len(pod.Status.PodIPs))
		for _, ip := range pod.Status.PodIPs {
			out = append(out, ip.IP)
		}
		return out, nil
	}})
}

func (c *dnsClients) allowed(a netip.Addr) bool {
	if a.IsLoopback() || slices.ContainsFunc(c.networks, func(p netip.Prefix) bool { return p.Contains(a) }) || c.isOwn(a, time.Now()) {
		return true
	}
	found, err := c.pods.ByIndex(byPodIP, a.String())
	return err == nil && len(found) > 0
}

// isOwn reports whether an address is the node's. The list is read again, at most once a second, when
// somebody unknown asks.
func (c *dnsClients) isOwn(a netip.Addr, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.own, a) {
		return true
	}
	if now.Sub(c.read) < time.Second {
		return false
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	c.read, c.own = now, nil
	for _, at := range addrs {
		if n, ok := at.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				c.own = append(c.own, ip.Unmap())
			}
		}
	}
	return slices.Contains(c.own, a)
}

// clusterDNS returns the addresses that pods get as their DNS servers: the ones that the user named,
// or that of our own.
func (d *Daemon) clusterDNS() ([]string, error) {
	vip, ok, err := d.cfg.DNSAddress()
	if err != nil || !ok {
		return d.cfg.ClusterDNS, err
	}
	return []string{vip.String()}, nil
}
