// Package policy enforces network policies on the node's bridge: it tells the kernel, by one nftables
// table of its own, which pods are isolated and who may talk to them all the same.
//
// A pure function turns pods, namespaces and policies into a plan (NewPlan); the plan is compared with
// what the kernel was told, and one transaction writes the difference. The table is never half-written,
// and a transaction that fails is followed by one that writes the whole table. When the enforcer ends,
// the table stays.
//
// A packet costs the same number of look-ups whatever the number of policies is: pods that the same
// policies select share a class, which has a chain; a map leads there by the pod's address. What the
// rules of a class allow is added up beforehand, into ranges that do not overlap (openings), the
// elements of two sets. What selectors, blocks and ports mean is in package netpol.
//
// Connections are judged by their first packet, on the addresses of the pods themselves: services are
// translated before, sources are masqueraded after. Packets between pods of one node are routed like all
// others; frames that a pod makes itself, past its routes, are switched by the bridge, which shows them to
// nftables once there is a policy (ShowBridged). What the node itself sends to its pods, and they to it,
// is not judged; nor is a pod's talk to itself.
package policy

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	nft "wherry.dev/internal/proxy/nftables"
)

// Config is what an Enforcer has to know.
type Config struct {
	Node   string // its name
	Table  string // name of the nftables table
	Bridge string // the link to this node's pods
	// ShowBridged makes the bridge show nftables what it switches; it is called while there are policies.
	ShowBridged func(ctx context.Context, bridge string) error
}

// retryAfter is how long the enforcer waits after a transaction that failed, at first; mostRetryAfter,
// at most.
const (
	retryAfter     = 20 * time.Millisecond
	mostRetryAfter = 30 * time.Second
)

// Enforcer enforces the policies of one node. Create one with New, Run it once.
type Enforcer struct {
	cfg                        Config
	pods, namespaces, policies cache.Indexer
	synced                     []cache.DoneChecker

	wake  chan struct{} // capacity 1
	ready chan struct{} // closed when the kernel has all policies

	mu        sync.Mutex
	sandboxes map[string]sandbox      // those whose addresses the runtime told us, by ID
	owners    map[netip.Addr]Identity // this node's pods, as the kernel has them
	written   chan struct{}           // closed, and replaced, when the kernel has something new

	// Only Run's goroutine uses these.
	kernel kernel
	warned string // what ShowBridged last complained of
}

// New returns an enforcer, with the informers of f.
func New(cfg Config, f informers.SharedInformerFactory) (*Enforcer, error) {
	all, namespaces := f.Core().V1().Pods().Informer(), f.Core().V1().Namespaces().Informer()
	policies := f.Networking().V1().NetworkPolicies().Informer()
	e := &Enforcer{
		cfg: cfg, pods: all.GetIndexer(), namespaces: namespaces.GetIndexer(), policies: policies.GetIndexer(),
		wake: make(chan struct{}, 1), ready: make(chan struct{}),
		sandboxes: map[string]sandbox{}, written: make(chan struct{}),
	}
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		same     func(old, obj any) bool
	}{{all, samePod}, {namespaces, sameNamespace}, {policies, samePolicy}} {
		if err := e.watch(w.informer, w.same); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *Enforcer) watch(informer cache.SharedIndexInformer, same func(old, obj any) bool) error {
	reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { e.changed() },
		UpdateFunc: func(old, obj any) {
			if !same(old, obj) {
				e.changed()
			}
		},
		DeleteFunc: func(any) { e.changed() },
	})
	if err != nil {
		return fmt.Errorf("network policies: %w", err)
	}
	e.synced = append(e.synced, reg.HasSyncedChecker())
	return nil
}

// samePod reports whether a plan has nothing to learn from an update. Statuses change all the time.
func samePod(old, obj any) bool {
	a, b := old.(*v1.Pod), obj.(*v1.Pod)
	return a.UID == b.UID && a.Spec.NodeName == b.Spec.NodeName && maps.Equal(a.Labels, b.Labels) &&
		pods.IsTerminal(a.Status.Phase) == pods.IsTerminal(b.Status.Phase) && slices.Equal(addressesOf(a), addressesOf(b))
}

func sameNamespace(old, obj any) bool {
	return maps.Equal(old.(*v1.Namespace).Labels, obj.(*v1.Namespace).Labels)
}

func samePolicy(old, obj any) bool {
	return equality.Semantic.DeepEqual(&old.(*networkingv1.NetworkPolicy).Spec, &obj.(*networkingv1.NetworkPolicy).Spec)
}

func (e *Enforcer) changed() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Ready is closed when the kernel has all policies.
func (e *Enforcer) Ready() <-chan struct{} { return e.ready }

// Run keeps the table until ctx ends.
func (e *Enforcer) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("policy"))
	if !cache.WaitFor(ctx, "", e.synced...) {
		return nil
	}
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	e.kernel = kernel{conn: conn, table: e.cfg.Table, bridge: e.cfg.Bridge}
	e.loop(ctx)
	return nil
}

func (e *Enforcer) loop(ctx context.Context) {
	whole, wait := true, retryAfter
	for {
		var again <-chan time.Time
		wake := e.wake
		if err := e.sync(ctx, whole); err != nil {
			klog.FromContext(ctx).Error(err, "Network policies could not be told to the kernel, will write the whole table", "after", wait)
			whole, again, wake, wait = true, time.After(wait), nil, min(2*wait, mostRetryAfter)
		} else {
			if whole {
				e.announce()
			}
			whole, wait = false, retryAfter
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-wake:
		}
	}
}

func (e *Enforcer) announce() {
	select {
	case <-e.ready:
	default:
		close(e.ready)
	}
}

// sync plans anew, and brings what is different, or everything, to the kernel.
func (e *Enforcer) sync(ctx context.Context, whole bool) error {
	f := e.facts()
	if len(f.Policies) > 0 {
		e.showBridged(ctx)
	}
	plan := NewPlan(f)
	write := e.kernel.apply
	if whole {
		write = e.kernel.replace
	}
	if err := write(&plan); err != nil {
		return err
	}
	e.announceWritten(plan.Owners)
	return nil
}

// showBridged logs once what keeps the bridge from showing what it switches. It keeps nobody from
// running pods.
func (e *Enforcer) showBridged(ctx context.Context) {
	err := e.cfg.ShowBridged(ctx, e.cfg.Bridge)
	if err == nil {
		e.warned = ""
		return
	}
	if e.warned != err.Error() {
		e.warned = err.Error()
		klog.FromContext(ctx).Error(err, "The bridge does not show what it switches", "bridge", e.cfg.Bridge)
	}
}

func (e *Enforcer) facts() *Facts {
	f := &Facts{Node: e.cfg.Node, Policies: list[networkingv1.NetworkPolicy](e.policies)}
	if len(f.Policies) == 0 {
		return f // nothing else matters
	}
	f.Known = e.known() // first: what is known of a pod that is gone from the list is of no use
	f.Pods, f.Namespaces = list[v1.Pod](e.pods), map[string]labels.Set{}
	for _, ns := range list[v1.Namespace](e.namespaces) {
		f.Namespaces[ns.Name] = ns.Labels
		if ns.Labels == nil {
			f.Namespaces[ns.Name] = labels.Set{} // nil is one that is not known
		}
	}
	return f
}

func list[T any](store cache.Indexer) (out []*T) {
	for _, item := range store.List() {
		out = append(out, item.(*T))
	}
	return out
}
