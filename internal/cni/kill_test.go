package cni

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"wherry.dev/internal/netns"
)

// TestKilledBetweenAnyTwoStepsOfTheBridge: the next run finds what was half made and undoes it;
// nothing of the pod is left.
func TestKilledBetweenAnyTwoStepsOfTheBridge(t *testing.T) {
	cfg := newConfig(t)
	port := PortMapping{Protocol: "tcp", ContainerPort: 80, HostPort: 41}
	for _, step := range []string{"bridge-leased", "bridge-plugged", "bridge-ports", "bridge-ports-closed"} {
		p := newPod(t, port)
		c := child{Bridge: &cfg, Pod: p}
		b := openTestBridge(t, cfg, nil)
		if step == "bridge-ports-closed" {
			setup(t, b, p)
			c.Teardown, c.Live = bridgeNetwork, map[string]Pod{p.ID: p}
		}
		c.killAt(t, step)
		b = openTestBridge(t, cfg, nil) // the pod was being made or removed: it is not live
		if err := b.Teardown(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := netns.Remove(filepath.Dir(p.NetNS)); err != nil {
			t.Fatal(err)
		}
		waitReclaimed(t, b)
		if gone, err := linkGone(linkName(p.ID)); err != nil || !gone {
			t.Errorf("killed at %s: link %s is left (%v)", step, linkName(p.ID), err)
		}
		for _, l := range b.pools {
			if held := l.owners(); len(held) != 0 {
				t.Errorf("killed at %s: leases %v", step, held)
			}
		}
		out, err := exec.Command("nft", "list", "table", "inet", cfg.Table).CombinedOutput()
		if err != nil || strings.Contains(string(out), ". 41 :") {
			t.Errorf("killed at %s: %v, rules left: %s", step, err, out)
		}
	}
}

// pluginHost is a namespace that stands for the machine, with our plugins or others.
func pluginHost(t *testing.T) string {
	t.Helper()
	host := newPod(t).NetNS
	if err := inside(host, func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() }); err != nil {
		t.Fatal(err)
	}
	return host
}

// hostState lists the veths and nftables elements of a host.
func hostState(t *testing.T, host string) (left []string) {
	t.Helper()
	err := inside(host, func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if strings.HasPrefix(l.Name, "veth") {
				left = append(left, l.Name)
			}
		}
		if err != nil {
			return err
		}
		out, err := exec.Command("nft", "list", "ruleset").Output()
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "comment") || strings.Contains(line, "CNI-DN-") {
				left = append(left, strings.TrimSpace(line))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// TestKilledBetweenAnyTwoStepsOfPlugins kills Wherry, not the plugin, at each step;
// its plugins are Wherry's own.
func TestKilledBetweenAnyTwoStepsOfPlugins(t *testing.T) {
	cfg, data := ownPlugins(t)
	host := pluginHost(t)
	for _, step := range []string{"plugins-recorded", "plugins-added", "plugins-deleted"} {
		p := newPod(t, PortMapping{Protocol: "tcp", ContainerPort: 80, HostPort: 41})
		c := child{Plugins: cfg, Pod: p}
		if step == "plugins-deleted" {
			n := openPlugins(t, cfg)
			if err := inside(host, func() error { _, err := n.Setup(t.Context(), p); return err }); err != nil {
				t.Fatal(err)
			}
			c.Teardown = "own"
		}
		if err := inside(host, func() error { c.killAt(t, step); return nil }); err != nil {
			t.Fatal(err)
		}
		n := openPlugins(t, cfg, p.ID)
		if err := inside(host, func() error { return n.Teardown(t.Context(), p, "") }); err != nil {
			t.Fatal(err)
		}
		if left := hostState(t, host); len(left) > 0 {
			t.Errorf("killed at %s, left: %q", step, left)
		}
		if leases, err := filepath.Glob(filepath.Join(data, "own", "10.*")); err != nil || len(leases) > 0 {
			t.Errorf("killed at %s: leases %v, %v", step, leases, err)
		}
		if ids, err := cfg.attachedIDs(); err != nil || len(ids) > 0 {
			t.Errorf("killed at %s: records %v, %v", step, ids, err)
		}
	}
}
