package cni

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// Without a range of addresses the network is not ready. Once told, it is; another range is taken when no pod has an
// address of the old one any more.
func TestRangeIsToldLater(t *testing.T) {
	ctx, base := t.Context(), newConfig(t)
	one, two := base.Subnets, []netip.Prefix{netip.MustParsePrefix("10.77.2.0/24")}
	base.Subnets = nil
	cfg := Config{Awaits: true, Bridge: base, Plugins: PluginsConfig{CacheDir: t.TempDir()}}
	n, err := Open(ctx, cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	pod, next := newPod(t), newPod(t)
	if err := n.Status(ctx); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "spec.podCIDRs") {
		t.Errorf("without a range: %v", err)
	}
	if _, err := n.Setup(ctx, pod); !errors.Is(err, ErrNotReady) {
		t.Errorf("a pod without a range: %v", err)
	}
	if err := n.Give(ctx, one); err != nil {
		t.Fatal(err)
	}
	at, err := n.Setup(ctx, pod)
	if err != nil || !one[0].Contains(at.IPs[0]) {
		t.Fatalf("%+v, %v", at, err)
	}
	if err := n.Give(ctx, one); err != nil || n.Status(ctx) != nil {
		t.Errorf("the same once more: %v, %v", err, n.Status(ctx))
	}
	if err := n.Give(ctx, two); err != nil {
		t.Fatal(err)
	}
	if err := n.Status(ctx); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "waiting until no pod") {
		t.Errorf("while a pod has an address of the old range: %v", err)
	}
	if err := n.Teardown(ctx, pod, at.Network); err != nil {
		t.Fatal(err)
	}
	if err := n.Status(ctx); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if at, err = n.Setup(ctx, next); err != nil || !two[0].Contains(at.IPs[0]) {
		t.Errorf("%+v, %v", at, err)
	}
	if err := n.Teardown(ctx, next, at.Network); err != nil {
		t.Error(err)
	}
}
