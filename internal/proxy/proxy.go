// Package proxy makes services reachable: it tells the kernel, by one nftables table of its own, to
// which endpoints the addresses and ports of services lead. It takes kube-proxy's place.
//
// Three steps follow from each change: a pure function says what the kernel has to do for a service
// (Plan); the state compares that with what the kernel was told; one transaction writes the
// difference. The table is never half-written, nothing outside of it is touched, and a transaction
// that fails is followed by one that writes the whole table.
//
// All that belongs to single services is in elements of sets and maps that all services share: the
// first packet of a connection costs the same number of look-ups whatever their number is, and a
// service has no chain of its own (see table.go). Two services that want the same address and port
// do not disturb each other: the first one has it.
//
// When the proxy ends, the table stays, and services work on as they are.
package proxy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"wherry.dev/internal/controller/backing"
	nft "wherry.dev/internal/proxy/nftables"
	"wherry.dev/internal/trace"
)

// Config is what a Proxy has to know.
type Config struct {
	Node  string // its name
	Table string // name of the nftables table
	// Bridge is the link to this node's pods, if there is one, and OtherBridges is what names of the
	// bridges of other instances on the machine begin with: those have a proxy of their own.
	Bridge, OtherBridges string
	// Pods are the networks of pods, as far as they are known.
	Pods []netip.Prefix
	// MasqueradeOutsiders: connections to cluster IPs that are not from Pods get an address of the
	// node as their source. MasqueradeAll: all of them do.
	MasqueradeOutsiders, MasqueradeAll bool
	// Reserved are TCP ports of the node's own programs, which services do not get at its addresses.
	Reserved []uint16
	// Addresses are those at which node ports are open; nil means the addresses of the Node object.
	Addresses func() ([]netip.Addr, error)
}

// retryAfter is how long the proxy waits after a transaction that failed, at first; mostRetryAfter,
// at most.
const (
	retryAfter     = 20 * time.Millisecond
	mostRetryAfter = 30 * time.Second
)

// Proxy is the service proxy of one node. Create one with New, Run it once.
type Proxy struct {
	cfg              Config
	services, slices cache.Indexer
	nodes, cidrs     cache.Indexer
	synced           []cache.DoneChecker

	wake  chan struct{} // capacity 1
	ready chan struct{} // closed when the kernel has all services

	mu      sync.Mutex
	dirty   map[string]bool // keys of services
	changed bool            // the node, or the ranges
	since   time.Time       // the oldest change that nobody has taken yet
	writing time.Time       // the oldest change that is being written
	updated time.Time       // when the kernel last had everything

	// Only Run's goroutine uses the rest.
	node    Node
	state   *state
	kernel  kernel
	healths *healths
	udp     stale // frontends whose old flows have to be forgotten
}

// New returns a proxy, with the informers of f.
func New(cfg Config, f informers.SharedInformerFactory) (*Proxy, error) {
	registerMetrics()
	services, own, nodes := f.Core().V1().Services().Informer(), f.Discovery().V1().EndpointSlices().Informer(), f.Core().V1().Nodes().Informer()
	cidrs := f.Networking().V1().ServiceCIDRs().Informer()
	if err := backing.IndexSlices(own); err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, services: services.GetIndexer(), slices: own.GetIndexer(), nodes: nodes.GetIndexer(), cidrs: cidrs.GetIndexer(),
		wake: make(chan struct{}, 1), ready: make(chan struct{}), dirty: map[string]bool{}, changed: true,
		state: newState(), udp: stale{},
	}
	p.healths = newHealths(func() bool { return p.Condition(time.Now()).Healthy })
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handle   func(any)
	}{{services, p.serviceChanged}, {own, p.sliceChanged}, {nodes, p.nodeChanged}} {
		synced, err := watch(w.informer, w.handle)
		if err != nil {
			return nil, err
		}
		p.synced = append(p.synced, synced)
	}
	// Nothing waits for the ranges: API servers before 1.33 do not have them.
	if _, err := watch(cidrs, func(any) { p.mark("") }); err != nil {
		return nil, err
	}
	return p, nil
}

func watch(informer cache.SharedIndexInformer, handle func(any)) (cache.DoneChecker, error) {
	reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(old, obj any) { handle(old); handle(obj) },
		DeleteFunc: func(obj any) {
			if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = t.Obj
			}
			handle(obj)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("service proxy: %w", err)
	}
	return reg.HasSyncedChecker(), nil
}

func (p *Proxy) serviceChanged(obj any) {
	if svc, ok := obj.(*v1.Service); ok {
		serviceChanges.Inc()
		p.mark(svc.Namespace + "/" + svc.Name)
	}
}

func (p *Proxy) sliceChanged(obj any) {
	if s, ok := obj.(*discoveryv1.EndpointSlice); ok && backing.ServiceOf(s) != "" {
		endpointChanges.Inc()
		p.mark(backing.ServiceOf(s))
	}
}

func (p *Proxy) nodeChanged(obj any) {
	if n, ok := obj.(*v1.Node); ok && n.Name == p.cfg.Node {
		p.mark("")
	}
}

// mark notes that a service, or with "" the node or the ranges of services, may have changed.
func (p *Proxy) mark(key string) {
	p.mu.Lock()
	if p.since.IsZero() {
		p.since = time.Now()
		queued.Set(float64(p.since.UnixNano()) / 1e9)
	}
	if key == "" {
		p.changed = true
	} else {
		p.dirty[key] = true
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take returns what changed since the last time.
func (p *Proxy) take() (keys []string, node bool, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing.IsZero() { // else the last time failed
		p.writing = p.since
	}
	keys, node, since = slices.Collect(maps.Keys(p.dirty)), p.changed, p.writing
	p.dirty, p.changed, p.since = map[string]bool{}, false, time.Time{}
	return keys, node, since
}

// written notes that the kernel has what take returned.
func (p *Proxy) written() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing, p.updated = time.Time{}, time.Now()
}

// Ready is closed when the kernel has all services.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Run keeps the table until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("proxy"))
	if !cache.WaitFor(ctx, "", p.synced...) {
		return nil
	}
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer p.healths.closeAll()
	p.kernel = kernel{conn: conn, table: p.cfg.Table, layout: layout{
		bridge: p.cfg.Bridge, others: p.cfg.OtherBridges, pods: p.cfg.Pods, outsiders: p.cfg.MasqueradeOutsiders, all: p.cfg.MasqueradeAll,
	}}
	p.loop(ctx)
	return nil
}

func (p *Proxy) loop(ctx context.Context) {
	whole, wait := true, retryAfter
	for {
		err := p.sync(ctx, whole)
		var again <-chan time.Time
		if err == nil {
			if whole {
				p.announce()
			}
			whole, wait = false, retryAfter
		} else {
			failures.Inc()
			klog.FromContext(ctx).Error(err, "Services could not be told to the kernel, will write the whole table", "after", wait)
			whole, again, wait = true, time.After(wait), min(2*wait, mostRetryAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-p.awake(again == nil):
		}
	}
}

// awake returns the channel of changes, unless a retry is due first.
func (p *Proxy) awake(wanted bool) <-chan struct{} {
	if wanted {
		return p.wake
	}
	return nil
}

func (p *Proxy) announce() {
	select {
	case <-p.ready:
	default:
		close(p.ready)
	}
}

// sync brings what changed, or everything, to the kernel.
func (p *Proxy) sync(ctx context.Context, whole bool) (err error) {
	began := time.Now()
	keys, node, since := p.take()
	if node {
		changed, err := p.lookAtNode()
		if err != nil {
			p.mark("")
			for _, key := range keys {
				p.mark(key)
			}
			return err
		}
		if changed {
			keys = append(keys, p.services.ListKeys()...)
			slices.Sort(keys)
			keys = slices.Compact(keys)
		}
		if now := p.ranges(); !slices.Equal(now, p.kernel.layout.ranges) {
			p.kernel.layout.ranges, whole = now, true
		}
	}
	c, fresh, err := p.decide(ctx, keys)
	if err != nil {
		return err
	}
	if whole {
		err = p.kernel.replace(p.state)
	} else {
		err = p.kernel.apply(p.state, c)
	}
	if err != nil {
		return err
	}
	p.written()
	observe(began, since, whole)
	if !whole {
		p.record(ctx, fresh, began)
	}
	if len(p.udp) > 0 {
		if err = p.udp.clear(); err == nil {
			p.udp = stale{}
		}
	}
	return err
}

// record makes what reached the kernel visible as a step in the lives of services and pods. fresh are
// the addresses that services now lead to and did not before.
func (p *Proxy) record(ctx context.Context, fresh map[string][]netip.Addr, began time.Time) {
	now := time.Now()
	for key, addresses := range fresh {
		_, name, _ := strings.Cut(key, "/")
		if item, ok, err := p.services.GetByKey(key); ok && err == nil {
			trace.RecordObject(ctx, string(item.(*v1.Service).UID), "proxy: rules", began, now)
		}
		all, err := backing.Slices(p.slices, key, "")
		if err != nil {
			return // there is no such index, and planning has failed before
		}
		for _, uid := range podsAt(all, addresses) {
			trace.Record(ctx, uid, "proxy: rules of service "+name, began, now)
		}
	}
}

// podsAt returns the UIDs of the pods that have one of the addresses.
func podsAt(all []*discoveryv1.EndpointSlice, addresses []netip.Addr) (uids []string) {
	for _, s := range all {
		for _, e := range s.Endpoints {
			if e.TargetRef == nil || len(e.Addresses) == 0 {
				continue
			}
			if a, err := netip.ParseAddr(e.Addresses[0]); err == nil && slices.Contains(addresses, a.Unmap()) {
				uids = append(uids, string(e.TargetRef.UID))
			}
		}
	}
	return uids
}

// decide plans for the services with the keys, and returns what has to be written, and to which addresses
// each service leads that it did not lead to before.
func (p *Proxy) decide(ctx context.Context, keys []string) (c change, fresh map[string][]netip.Addr, err error) {
	fresh = map[string][]netip.Addr{}
	p.sort(keys)
	for _, key := range keys {
		r, err := p.plan(key)
		if err != nil {
			return c, nil, err
		}
		old := p.state.services[key].rules
		p.state.set(key, r, &c)
		if added := newEndpoints(old, r); len(added) > 0 || len(old.Frontends) == 0 && len(r.Frontends) > 0 {
			fresh[key] = added
		}
		if !slices.EqualFunc(old.Balancers, r.Balancers, equalBalancers) || len(old.Frontends) != len(r.Frontends) {
			p.udp.add(&r)
		}
		p.serveHealth(ctx, key, &r)
	}
	return c, fresh, nil
}

// newEndpoints returns the addresses of endpoints that only r has.
func newEndpoints(old, r Rules) (out []netip.Addr) {
	had := map[netip.Addr]bool{}
	for _, b := range old.Balancers {
		for _, e := range b.Endpoints {
			had[e.Addr()] = true
		}
	}
	for _, b := range r.Balancers {
		for _, e := range b.Endpoints {
			if a := e.Addr(); !had[a] {
				had[a] = true
				out = append(out, a)
			}
		}
	}
	return out
}

func equalBalancers(a, b Balancer) bool {
	return a.Affinity == b.Affinity && slices.Equal(a.Endpoints, b.Endpoints)
}

// sort puts older services first: of two that want the same address, the older one gets it.
func (p *Proxy) sort(keys []string) {
	born := map[string]time.Time{}
	for _, key := range keys {
		if item, ok, err := p.services.GetByKey(key); ok && err == nil {
			born[key] = item.(*v1.Service).CreationTimestamp.Time
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(born[a].Compare(born[b]), strings.Compare(a, b)) })
}

func (p *Proxy) plan(key string) (Rules, error) {
	item, exists, err := p.services.GetByKey(key)
	if err != nil || !exists {
		return Rules{}, err
	}
	all, err := backing.Slices(p.slices, key, "")
	if err != nil {
		return Rules{}, err
	}
	return Plan(item.(*v1.Service), all, p.node), nil
}

// lookAtNode reads the node anew, and reports whether it has changed.
func (p *Proxy) lookAtNode() (bool, error) {
	now := Node{Name: p.cfg.Node, Reserved: p.cfg.Reserved}
	item, exists, err := p.nodes.GetByKey(p.cfg.Node)
	if err != nil {
		return false, err
	}
	if exists {
		n := item.(*v1.Node)
		now.Zone = n.Labels[v1.LabelTopologyZone]
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == v1.NodeInternalIP {
				now.Addresses = append(now.Addresses, ip)
			}
		}
	}
	if p.cfg.Addresses != nil {
		if now.Addresses, err = p.cfg.Addresses(); err != nil {
			return false, err
		}
	}
	changed := now.Zone != p.node.Zone || !slices.Equal(now.Addresses, p.node.Addresses) || p.node.Name == ""
	p.node = now
	return changed, nil
}

// ranges returns the networks that services get their addresses from, in order. Ranges of a server may overlap.
func (p *Proxy) ranges() (out []netip.Prefix) {
	for _, item := range p.cidrs.List() {
		for _, s := range item.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			if n, err := netip.ParsePrefix(s); err == nil { // else validation has let something new through
				out = append(out, n.Masked())
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// serveHealth answers load balancers. One that cannot be answered holds up nothing else; upstream
// goes on as well.
func (p *Proxy) serveHealth(ctx context.Context, key string, r *Rules) {
	namespace, name, _ := strings.Cut(key, "/")
	if err := p.healths.set(ctx, namespace, name, r, p.node.Addresses); err != nil {
		klog.FromContext(ctx).Error(err, "Health checks of a service cannot be answered", "service", key)
	}
}
