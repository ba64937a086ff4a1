package cni

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
)

// Config is the network of one instance.
type Config struct {
	Bridge  BridgeConfig
	Plugins PluginsConfig
}

// Network is the instance's way to connect pods. What is configured in the CNI
// folder goes before the bridge; the folder is looked at for every new pod, so that
// a network that is installed later is used from then on, while pods keep theirs.
type Network struct {
	cfg    Config
	bridge *Bridge

	mu     sync.Mutex // guards loaded
	loaded *Plugins   // the configured network that was used last, for DEL
}

// Open brings the bridge up and recovers what live pods have.
func Open(ctx context.Context, cfg Config, live map[string]Pod) (*Network, error) {
	b, err := OpenBridge(ctx, cfg.Bridge, live)
	if err != nil {
		return nil, err
	}
	return &Network{cfg: cfg, bridge: b}, nil
}

// Close lets go of the network's sockets; pods stay connected.
func (n *Network) Close() error { return n.bridge.Close() }

// SetService is Bridge.SetService.
func (n *Network) SetService(ctx context.Context, s Service) error {
	return n.bridge.SetService(ctx, s)
}

// Status is nil when pods can be connected, and says what is missing otherwise.
func (n *Network) Status(ctx context.Context) error {
	p, err := n.plugins()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if p == nil {
		return nil
	}
	if err := p.Check(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	return nil
}

// plugins returns the configured network, or nil when the bridge is to be used.
func (n *Network) plugins() (*Plugins, error) {
	p, err := LoadPlugins(n.cfg.Plugins)
	if errors.Is(err, ErrNoNetwork) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loaded = p
	return p, nil
}

// Setup connects a pod and returns what was done.
func (n *Network) Setup(ctx context.Context, pod Pod) (Attachment, error) {
	p, err := n.plugins()
	if err != nil {
		return Attachment{}, fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if p == nil {
		return n.bridge.Setup(ctx, pod)
	}
	return p.Setup(ctx, pod)
}

// Teardown disconnects a pod. network is that of its Attachment; "" when a crash
// left unknown which one was used: then every one that could be is asked.
func (n *Network) Teardown(ctx context.Context, pod Pod, network string) error {
	if network == "" || network == bridgeNetwork {
		if err := n.bridge.Teardown(ctx, pod); err != nil {
			return err
		}
		if network == bridgeNetwork {
			return nil
		}
	}
	p, err := n.plugins()
	if err != nil {
		return err
	}
	if p == nil {
		n.mu.Lock()
		p = n.loaded
		n.mu.Unlock()
	}
	if p == nil || (network != "" && p.Name() != network) {
		if network == "" {
			return nil
		}
		return fmt.Errorf("the CNI network %s of sandbox %s is no longer configured in %s; put its configuration back to remove the pod's network",
			network, pod.ID, n.cfg.Plugins.ConfDir)
	}
	return p.Teardown(ctx, pod)
}

// Remove takes all network state of an instance away, whether it runs or not.
// Its pods must be gone.
func (cfg Config) Remove(ctx context.Context) error { return cfg.Bridge.Remove(ctx) }

// LeaseDir is where the bridge's addresses are kept.
func (cfg BridgeConfig) LeaseDir() string { return filepath.Join(cfg.Dir, "leases") }
