package cni

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"wherry.dev/internal/failpoint"
	"wherry.dev/internal/record"
)

// Config is the network of one instance.
type Config struct {
	Bridge      BridgeConfig
	Plugins     PluginsConfig
	PluginsOnly bool // no bridge of our own: not ready until a CNI network is configured
	// Awaits: Bridge.Subnets are not known yet. There is no bridge until Give tells them.
	Awaits bool
}

// Network connects the instance's pods. What is configured in the CNI folder takes precedence
// over the bridge. The folder is read for every new pod, so nobody has to report a change and no
// event can be missed; existing pods keep their network.
type Network struct {
	cfg  Config
	wake chan struct{}

	giving sync.RWMutex   // read-locked while the bridge is used, write-locked while it is replaced
	bridge *Bridge        // without a link if there are only plugins, or as long as there are no subnets
	wanted []netip.Prefix // subnets to change to, once no pod has an address of the present ones

	adds sync.RWMutex // read-locked while pods are attached, write-locked by GC

	asking    sync.Mutex        // guards the next two; held while plugins are asked
	validated [sha256.Size]byte // hash of the chain whose plugins are known to speak its version
	statusOK  time.Time         // when its plugins last reported that they can serve ADD

	mu        sync.Mutex      // guards the next two
	loaded    string          // what was last logged about the folder
	abandoned map[string]bool // attachments that only GC will remove
}

// statusTrust is how long a good answer to STATUS is trusted: kubelets ask every few seconds, and
// each request starts all plugins.
const statusTrust = 30 * time.Second

// Open sets up the network and restores what live pods have, by sandbox ID. known are all
// sandboxes, live or not: attachments of any others are abandoned, and Run removes them.
func Open(ctx context.Context, cfg Config, live map[string]Pod, known map[string]bool) (*Network, error) {
	n := &Network{cfg: cfg, wake: make(chan struct{}, 1), abandoned: map[string]bool{}}
	if err := n.findAbandoned(known); err != nil {
		return nil, err
	}
	var err error
	if cfg.PluginsOnly || cfg.Awaits && len(cfg.Bridge.Subnets) == 0 {
		n.bridge, err = openNone(ctx, cfg.Bridge)
	} else {
		n.bridge, err = OpenBridge(ctx, cfg.Bridge, live)
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

func (n *Network) findAbandoned(known map[string]bool) error {
	ids, err := n.cfg.Plugins.attachedIDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		a, _, err := n.cfg.Plugins.readAttached(id)
		if !known[id] || err == nil && a.Abandoned {
			n.abandoned[id] = true
		}
	}
	return nil
}

// Close closes the network's sockets; pods stay connected.
func (n *Network) Close() error {
	n.giving.Lock()
	defer n.giving.Unlock()
	return n.bridge.Close()
}

// Give tells from which networks pods get their addresses, if the network was opened to await that. If they have others
// already, and a pod still has an address of those, the network is not ready until it is gone.
func (n *Network) Give(ctx context.Context, subnets []netip.Prefix) error {
	if n.cfg.PluginsOnly || !n.cfg.Awaits {
		return nil
	}
	n.giving.Lock()
	defer n.giving.Unlock()
	return n.give(ctx, subnets)
}

func (n *Network) give(ctx context.Context, subnets []netip.Prefix) error {
	old := n.bridge
	if slices.Equal(old.cfg.Subnets, subnets) {
		n.wanted = nil
		return nil
	}
	if err := checkSubnets(subnets); err != nil {
		return err
	}
	n.wanted = subnets
	if old.busy() {
		return nil // Status says so, and tries again
	}
	if len(old.cfg.Subnets) > 0 { // a bridge has the addresses of one network only
		if err := old.cfg.Remove(ctx); err != nil {
			return err
		}
	}
	cfg := n.cfg.Bridge
	cfg.Subnets = subnets
	next, err := OpenBridge(ctx, cfg, nil)
	if err != nil {
		return err
	}
	n.bridge, n.wanted = next, nil
	return old.Close()
}

// settled returns nil if pods can be connected to the bridge.
func (n *Network) settled(ctx context.Context) error {
	n.giving.Lock()
	defer n.giving.Unlock()
	if n.wanted != nil {
		if err := n.give(ctx, n.wanted); err != nil {
			return err
		}
	}
	switch {
	case n.wanted != nil:
		return fmt.Errorf("the node has other addresses for its pods now, %v: waiting until no pod has one of %v", n.wanted, n.bridge.cfg.Subnets)
	case len(n.bridge.cfg.Subnets) == 0:
		return errors.New("the node has no addresses for its pods yet (spec.podCIDRs), which the cluster's node-ipam-controller gives")
	}
	return nil
}

// Status returns nil if pods can be connected, else an error that says what is missing.
func (n *Network) Status(ctx context.Context) error {
	c, err := n.chain(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if c == nil {
		if n.cfg.Awaits {
			if err := n.settled(ctx); err != nil {
				return fmt.Errorf("%w: %w", ErrNotReady, err)
			}
		}
		return nil
	}
	if err := n.ready(ctx, c); err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	return nil
}

// ready asks the plugins: once for their versions, and from time to time for STATUS.
func (n *Network) ready(ctx context.Context, c *chain) error {
	n.asking.Lock()
	defer n.asking.Unlock()
	sum := sha256.Sum256(c.list.Bytes)
	if err := missingPlugin(c.types(), n.cfg.Plugins.BinDirs); err != nil {
		n.validated = [sha256.Size]byte{}
		return fmt.Errorf("CNI network %s: %w", c.name(), err)
	}
	if n.validated != sum {
		if err := c.validate(ctx); err != nil {
			return err
		}
		n.validated, n.statusOK = sum, time.Time{}
	}
	if time.Since(n.statusOK) < statusTrust {
		return nil
	}
	if err := c.status(ctx); err != nil {
		n.statusOK = time.Time{}
		return err
	}
	n.statusOK = time.Now()
	return nil
}

// chain returns the configured network, or nil if the bridge is to be used.
func (n *Network) chain(ctx context.Context) (*chain, error) {
	c, skipped, err := loadChain(n.cfg.Plugins)
	n.report(ctx, c, skipped, err)
	if errors.Is(err, ErrNoNetwork) {
		if n.cfg.PluginsOnly {
			return nil, fmt.Errorf("cni plugin not initialized: %w", err) // containerd's words, which people search for
		}
		return nil, nil
	}
	return c, err
}

// report logs the state of the folder if it has changed.
func (n *Network) report(ctx context.Context, c *chain, skipped, err error) {
	var what string
	switch {
	case c != nil:
		what = fmt.Sprintf("%s in %s (%v)", c.name(), c.file, skipped)
	case err != nil:
		what = err.Error()
	}
	n.mu.Lock()
	changed := n.loaded != what
	n.loaded = what
	n.mu.Unlock()
	if !changed {
		return
	}
	log := klog.FromContext(ctx)
	if skipped != nil {
		log.Error(skipped, "Skipped a CNI configuration")
	}
	switch {
	case c != nil:
		log.Info("Connecting pods with CNI plugins", "network", c.name(), "file", c.file, "cniVersion", c.list.CNIVersion)
	case !errors.Is(err, ErrNoNetwork):
		log.Error(err, "No valid CNI network")
	default:
		log.V(2).Info("No CNI network", "folder", n.cfg.Plugins.ConfDir)
	}
}

// Setup connects a pod and returns what it did. If it fails, it leaves nothing.
func (n *Network) Setup(ctx context.Context, pod Pod) (Attachment, error) {
	c, err := n.chain(ctx)
	if err != nil {
		return Attachment{}, fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if c == nil {
		return n.setupOnBridge(ctx, pod)
	}
	n.adds.RLock()
	defer n.adds.RUnlock()
	if err := n.cfg.Plugins.storeAttached(attached{Pod: pod, Config: c.list.Bytes}); err != nil {
		return Attachment{}, fmt.Errorf("record network of sandbox %s: %w", pod.ID, err)
	}
	failpoint.At("plugins-recorded")
	at, err := c.add(ctx, pod)
	if err != nil {
		return Attachment{}, errors.Join(err, n.leave(ctx, pod.ID))
	}
	return at, nil
}

func (n *Network) setupOnBridge(ctx context.Context, pod Pod) (Attachment, error) {
	if n.cfg.Awaits {
		if err := n.settled(ctx); err != nil {
			return Attachment{}, fmt.Errorf("%w: %w", ErrNotReady, err)
		}
	}
	n.giving.RLock()
	defer n.giving.RUnlock()
	return n.bridge.Setup(ctx, pod)
}

// Teardown disconnects a pod. network is that of its Attachment, or "" if, after a crash, it is
// not known which one was used.
func (n *Network) Teardown(ctx context.Context, pod Pod, network string) error {
	if network == "" || network == bridgeNetwork {
		n.giving.RLock()
		err := n.bridge.Teardown(ctx, pod)
		n.giving.RUnlock()
		if err != nil {
			return err
		}
		if network == bridgeNetwork {
			return nil
		}
	}
	n.mu.Lock()
	abandoned := n.abandoned[pod.ID]
	n.mu.Unlock()
	if abandoned {
		return nil // it hung; GC takes care of it now
	}
	defer n.collect()
	_, _, err := n.cfg.Plugins.readAttached(pod.ID)
	var corrupt *record.CorruptError
	switch {
	case err == nil:
		return n.leave(ctx, pod.ID)
	case errors.Is(err, fs.ErrNotExist) && network == "":
		return nil // the record is written before the first plugin is called
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &corrupt):
		return n.leaveUnrecorded(ctx, pod, network)
	}
	return err
}

// leave runs DEL as the pod's record says. A plugin that hangs does not block the pod's removal
// for ever: the record stays, and GC tries again.
func (n *Network) leave(ctx context.Context, id string) error {
	a, c, err := n.cfg.Plugins.readAttached(id)
	if err != nil {
		return fmt.Errorf("read network record of sandbox %s: %w", id, err)
	}
	// Ignore the caller's deadline: a DEL that it cut short would be cut short again at every
	// repetition.
	err = c.del(context.WithoutCancel(ctx), a.Pod)
	if hung, ok := errors.AsType[*HungError](err); ok {
		klog.FromContext(ctx).Error(err, "A CNI plugin hangs; removing the sandbox now, and its CNI network later",
			"sandbox", id, "network", c.name(), "plugin", hung.Plugin)
		a.Abandoned = true
		if err := n.cfg.Plugins.storeAttached(a); err != nil {
			return fmt.Errorf("record network of sandbox %s: %w", id, err)
		}
		n.mu.Lock()
		n.abandoned[id] = true
		n.mu.Unlock()
		n.collect()
		return nil
	}
	if err != nil {
		return err
	}
	failpoint.At("plugins-deleted")
	return n.cfg.Plugins.forget(id)
}

// leaveUnrecorded does what it can for a pod whose record was lost: DEL by the network as
// configured now. If none is configured, there is nothing left to call, and the pod's removal is
// not held up.
func (n *Network) leaveUnrecorded(ctx context.Context, pod Pod, network string) error {
	c, _, err := loadChain(n.cfg.Plugins)
	if err == nil && (network == "" || c.name() == network) {
		if err := c.del(context.WithoutCancel(ctx), pod); err != nil {
			return err
		}
	} else {
		klog.FromContext(ctx).Error(err, "The sandbox's CNI network is no longer configured and its record is lost; only the plugins' GC can release what it holds",
			"sandbox", pod.ID, "network", network, "folder", n.cfg.Plugins.ConfDir)
	}
	return n.cfg.Plugins.forget(pod.ID)
}

// Check returns an error if the pod's network is not as Setup left it.
func (n *Network) Check(ctx context.Context, pod Pod, network string) error {
	if network == bridgeNetwork {
		n.giving.RLock()
		defer n.giving.RUnlock()
		return n.bridge.Check(pod)
	}
	_, c, err := n.cfg.Plugins.readAttached(pod.ID)
	if err != nil {
		return fmt.Errorf("read network record of sandbox %s: %w", pod.ID, err)
	}
	return c.check(ctx, pod)
}

// Remove removes all network state of an instance, whether it runs or not. Its pods must be gone.
func (cfg Config) Remove(ctx context.Context) error { return cfg.Bridge.Remove(ctx) }
