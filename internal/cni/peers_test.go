package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wherry.dev/internal/cni/plugin"
)

// ownPlugins is a network of Wherry's own executables, and their folder of leases.
func ownPlugins(t *testing.T) (cfg PluginsConfig, data string) {
	t.Helper()
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range plugin.Names() {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return chainConfig(t, bin, "1.1.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
}

// chainConfig configures bridge and host-local for both IP families, followed by more plugins.
func chainConfig(t *testing.T, bin, cniVersion, more string) (cfg PluginsConfig, data string) {
	t.Helper()
	cfg = PluginsConfig{ConfDir: t.TempDir(), BinDirs: []string{bin}, CacheDir: t.TempDir()}
	data = t.TempDir()
	doc := fmt.Sprintf(`{"cniVersion":%q,"name":"own","plugins":[{"type":"bridge","bridge":"own0","isDefaultGateway":true,"ipMasq":true,"hairpinMode":true,
	 "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.22.0.0/24"}],[{"subnet":"fd00:22::/64"}]]}},%s]}`, cniVersion, data, more)
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "10-own.conflist"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return cfg, data
}

// oneFamily removes the IPv6 network and CHECK: Debian's portmap (1.1.1) looks for the IPv4 rules
// among the IPv6 ones.
func oneFamily(t *testing.T, cfg PluginsConfig) {
	t.Helper()
	path := filepath.Join(cfg.ConfDir, "10-own.conflist")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.NewReplacer(`,[{"subnet":"fd00:22::/64"}]`, "", `"name":"own"`, `"name":"own","disableCheck":true`).Replace(string(doc))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// useChain runs a pod's life on a network of plugins.
func useChain(t *testing.T, cfg PluginsConfig, host string, families int) {
	t.Helper()
	n := openPlugins(t, cfg)
	if err := inside(host, func() error { return n.Status(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	p, q := newPod(t, PortMapping{Protocol: "tcp", ContainerPort: 8080, HostPort: 4141}), newPod(t)
	p.Bandwidth = Bandwidth{Ingress: 1e9, Egress: 1e9}
	var at Attachment
	err := inside(host, func() (err error) {
		if at, err = n.Setup(t.Context(), p); err != nil {
			return err
		}
		_, err = n.Setup(t.Context(), q)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(at.IPs) != families || !at.IPs[0].Is4() || !at.IPs[families-1].Is4() == (families == 1) || at.MAC == "" {
		t.Errorf("attachment %+v", at)
	}
	serve(t, p.NetNS, ":8080", "pod")
	for _, a := range at.IPs {
		expect(t, q.NetNS, netip.AddrPortFrom(a, 8080).String(), "pod ")
		expect(t, host, netip.AddrPortFrom(a, 8080).String(), "pod ")
	}
	expect(t, host, "127.0.0.1:4141", "pod ")
	expect(t, p.NetNS, "10.22.0.1:4141", "pod ") // itself, through the host
	if err := inside(host, func() error { return n.Check(t.Context(), p, at.Network) }); err != nil {
		t.Error(err)
	}
	for _, x := range []Pod{p, p, q} { // DEL can be repeated
		if err := inside(host, func() error { return n.Teardown(t.Context(), x, at.Network) }); err != nil {
			t.Fatal(err)
		}
	}
	if left := hostState(t, host); len(left) > 0 {
		t.Errorf("left on the host: %q", left)
	}
}

func TestOwnPluginsUnderUs(t *testing.T) {
	cfg, _ := ownPlugins(t)
	useChain(t, cfg, pluginHost(t), 2)
}

// TestUpstreamsPluginsUnderUs needs Debian's containernetworking-plugins and iptables.
func TestUpstreamsPluginsUnderUs(t *testing.T) {
	needsTheirs(t, "bandwidth")
	if _, err := os.Stat("/usr/sbin/iptables"); err != nil {
		t.Skip("needs the package iptables")
	}
	cfg, data := chainConfig(t, theirs, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true},"snat":true},{"type":"bandwidth","capabilities":{"bandwidth":true}}`)
	oneFamily(t, cfg)
	useChain(t, cfg, pluginHost(t), 1)
	if left, err := filepath.Glob(filepath.Join(data, "own", "10.*")); err != nil || len(left) > 0 {
		t.Errorf("leases %v, %v", left, err)
	}
}

// TestOwnPluginsTakeOverFromUpstreams: the pod was connected by upstream's executables, which
// were replaced while it ran.
func TestOwnPluginsTakeOverFromUpstreams(t *testing.T) {
	needsTheirs(t, "bridge")
	own, _ := ownPlugins(t)
	cfg, data := chainConfig(t, theirs, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	doc, err := os.ReadFile(filepath.Join(cfg.ConfDir, "10-own.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	quiet := strings.Replace(string(doc), `"ipMasq":true,`, "", 1) // only upstream's plugins can find their own rules
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "10-own.conflist"), []byte(quiet), 0o600); err != nil {
		t.Fatal(err)
	}
	host, p := pluginHost(t), newPod(t)
	n := openPlugins(t, cfg)
	if err := inside(host, func() error { _, err := n.Setup(t.Context(), p); return err }); err != nil {
		t.Fatal(err)
	}
	cfg.BinDirs = own.BinDirs
	n = openPlugins(t, cfg, p.ID)
	if err := inside(host, func() error { return n.Teardown(t.Context(), p, "own") }); err != nil {
		t.Fatal(err)
	}
	if left := hostState(t, host); len(left) > 0 {
		t.Errorf("left on the host: %q", left)
	}
	if left, err := filepath.Glob(filepath.Join(data, "own", "10.*")); err != nil || len(left) > 0 {
		t.Errorf("leases %v, %v", left, err)
	}
}
