// Package mesh connects the pods of a cluster's nodes: each node has routes to the ranges of all others, directly where they
// are on the same link, and through VXLAN elsewhere; or through WireGuard to all.
//
// Everything follows from the Node objects: their ranges (spec.podCIDRs) and addresses. A pure function says what the kernel
// has to know (planner), and what it knows is compared with that whenever a node, or a link, an address or a route of this
// machine, has changed. Nothing is learned from packets: the entries of neighbours and of the tunnel's other ends are
// written, too. When the process ends, all stays as it is.
package mesh

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/cluster"
	vocabulary "wherry.dev/internal/api/nodes"
	"wherry.dev/internal/cni/nft"
)

// Config is what a Mesh has to know.
type Config struct {
	Node     string // its name
	Instance string // ID of the instance, which makes names in the kernel unique
	Mode     string // one of cluster.Mode…, but not ModeNone
	VNI      uint32
	Key      wgtypes.Key    // private, for cluster.ModeWireGuard
	Cluster  []netip.Prefix // the networks of all nodes' pods
}

// retryAfter is how long the mesh waits after a failure, at first; mostRetryAfter, at most.
const (
	retryAfter     = 100 * time.Millisecond
	mostRetryAfter = 30 * time.Second
)

// Mesh keeps a node's ways to the pods of others. Create one with New, Run it once.
type Mesh struct {
	nodes   corelisters.NodeLister
	synced  cache.DoneChecker
	planner planner
	kernel  kernel
	wake    chan struct{} // capacity 1
	ready   chan struct{} // closed when the kernel knows all ways for the first time

	wrong map[string]string // what was last said to be wrong with nodes
}

// New returns a mesh, with the informers of f.
func New(cfg Config, f informers.SharedInformerFactory) (*Mesh, error) {
	nodes := f.Core().V1().Nodes()
	m := &Mesh{
		nodes:   nodes.Lister(),
		planner: planner{self: cfg.Node, mode: cfg.Mode, cluster: cfg.Cluster, way: wayTo},
		kernel:  kernel{link: LinkName(cfg.Instance), mode: cfg.Mode, vni: cfg.VNI, key: cfg.Key, cluster: cfg.Cluster},
		wake:    make(chan struct{}, 1), ready: make(chan struct{}), wrong: map[string]string{},
	}
	reg, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { m.poke() },
		DeleteFunc: func(any) { m.poke() },
		UpdateFunc: func(old, obj any) {
			a, ok := old.(*v1.Node)
			b, ok2 := obj.(*v1.Node)
			if !ok || !ok2 || !same(nodeOf(a), nodeOf(b)) { // most changes are of the status
				m.poke()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("routes to other nodes: %w", err)
	}
	m.synced = reg.HasSyncedChecker()
	return m, nil
}

func (m *Mesh) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// nodeOf returns what a Node says.
func nodeOf(n *v1.Node) Node {
	out := Node{Name: n.Name, Created: n.CreationTimestamp.Time, Ranges: vocabulary.Ranges(n), Key: n.Annotations[cluster.AnnotationWireGuard]}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == v1.NodeInternalIP {
			out.Addresses = append(out.Addresses, ip.Unmap())
		}
	}
	return out
}

func same(a, b Node) bool {
	return a.Name == b.Name && a.Key == b.Key && a.Created.Equal(b.Created) && slices.Equal(a.Ranges, b.Ranges) && slices.Equal(a.Addresses, b.Addresses)
}

// Ready is closed when the kernel knows the ways to all nodes that were there at the start, or that there is no way.
func (m *Mesh) Ready() <-chan struct{} { return m.ready }

// Run keeps the ways until ctx ends. They stay then.
func (m *Mesh) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", m.synced) {
		return nil
	}
	if err := m.watchMachine(ctx); err != nil {
		return err
	}
	go m.tellDropping(ctx) // it starts a program, and nothing waits for what it says
	var again <-chan time.Time
	wait := retryAfter
	m.poke()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-again:
		}
		if err := m.sync(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot tell the kernel the ways to other nodes' pods, will retry", "after", wait)
			again, wait = time.After(wait), min(2*wait, mostRetryAfter)
			continue
		}
		again, wait = nil, retryAfter
		select {
		case <-m.ready:
		default:
			close(m.ready)
		}
	}
}

func (m *Mesh) sync(ctx context.Context) error {
	all, err := m.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	nodes := make([]Node, len(all))
	for i, n := range all {
		nodes[i] = nodeOf(n)
	}
	p, own, ok := m.planner.plan(nodes)
	m.tell(klog.FromContext(ctx), p.wrong)
	if !ok {
		return nil // this node has no range: nobody here sends anything to pods
	}
	return m.kernel.apply(p, own)
}

// tellDropping says which firewall of the host may keep pods of other nodes away: it is not ours to change.
func (m *Mesh) tellDropping(ctx context.Context) {
	log := klog.FromContext(ctx)
	chains, err := nft.Dropping(ctx)
	if err != nil {
		log.Error(err, "Cannot tell whether a firewall drops what is forwarded")
		return
	}
	for _, c := range chains {
		log.Error(nil, "A firewall of this machine drops what is forwarded, unless it has rules that let pods through: "+
			"accept the cluster's networks there, as source and as destination", "chain", c.String(), "networks", m.planner.cluster)
	}
}

// tell logs what is newly wrong.
func (m *Mesh) tell(log klog.Logger, wrong map[string]error) {
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		if text := wrong[name].Error(); m.wrong[name] != text {
			m.wrong[name] = text
			log.Error(wrong[name], "Pods of a node cannot be reached from here", "node", name)
		}
	}
	maps.DeleteFunc(m.wrong, func(name, _ string) bool { return wrong[name] == nil })
}

// watchMachine wakes the loop when links, addresses or routes of this machine change.
func (m *Mesh) watchMachine(ctx context.Context) error {
	links, addrs, routes := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64), make(chan netlink.RouteUpdate, 64)
	lost := func(err error) {
		klog.FromContext(ctx).V(2).Info("Events of the machine's network were lost", "err", err)
		m.poke()
	}
	err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: lost})
	if err == nil {
		err = netlink.AddrSubscribeWithOptions(addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: lost})
	}
	if err == nil {
		err = netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: lost})
	}
	if err != nil {
		return fmt.Errorf("watch the machine's network: %w", err)
	}
	go forward(links, func(u netlink.LinkUpdate) {
		if !strings.HasPrefix(u.Attrs().Name, podLinks) {
			m.poke()
		}
	})
	go forward(addrs, func(u netlink.AddrUpdate) {
		if !u.LinkAddress.IP.IsLinkLocalUnicast() {
			m.poke()
		}
	})
	go forward(routes, func(u netlink.RouteUpdate) {
		mine := u.Protocol == routeProtocol && u.Type == unix.RTM_NEWROUTE
		if dst := u.Dst; !mine && (dst == nil || !dst.IP.IsLinkLocalUnicast() && !dst.IP.IsMulticast()) {
			m.poke()
		}
	})
	return nil
}

// podLinks is what the names of links to pods begin with. They come and go with every pod, and lead nowhere else.
const podLinks = "veth"

// forward hands over what comes through a channel until it is closed.
func forward[T any](from <-chan T, to func(T)) {
	for u := range from {
		to(u)
	}
}
