package cni

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wherry.dev/internal/netns"
)

// fakePlugin is a CNI plugin in shell: it makes a link in the namespace, answers ADD
// with an address, and writes down how it was called.
const fakePlugin = `#!/bin/sh
dir=$(dirname "$0")
conf=$(cat)
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'; exit 0;;
esac
echo "$CNI_COMMAND $(basename $0) ns=${CNI_NETNS:+yes} $CNI_ARGS $(echo "$conf" | tr -d '\n ' | grep -o '"runtimeConfig":{[^}]*}' )" >> "$dir/calls"
[ -e "$dir/fail-$(basename $0)-$CNI_COMMAND" ] && { echo '{"cniVersion":"1.0.0","code":100,"msg":"out of cheese"}'; exit 1; }
[ $CNI_COMMAND = ADD ] || exit 0
echo '{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"},{"name":"eth0","mac":"0a:58:00:00:00:01","sandbox":"'$CNI_NETNS'"}],
 "ips":[{"interface":1,"address":"10.9.8.7/24"},{"interface":1,"address":"fd00::7/64"}]}'
`

func fakeNetwork(t *testing.T) (PluginsConfig, func() []string) {
	t.Helper()
	bin, conf := t.TempDir(), t.TempDir()
	for _, name := range []string{"first", "second"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(fakePlugin), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	doc := `{"cniVersion":"1.0.0","name":"testnet","plugins":[{"type":"first"},{"type":"second","capabilities":{"portMappings":true}}]}`
	if err := os.WriteFile(filepath.Join(conf, "10-test.conflist"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	calls := func() []string {
		doc, err := os.ReadFile(filepath.Join(bin, "calls"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		_ = os.Remove(filepath.Join(bin, "calls"))
		return strings.Split(strings.TrimSpace(string(doc)), "\n")
	}
	return PluginsConfig{ConfDir: conf, BinDirs: []string{bin}, CacheDir: t.TempDir()}, calls
}

func TestConfiguredNetworkGoesBeforeTheBridge(t *testing.T) {
	bridge := newConfig(t)
	plugins, calls := fakeNetwork(t)
	n, err := Open(t.Context(), Config{Bridge: bridge, Plugins: plugins}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	if err := n.Status(t.Context()); err != nil {
		t.Error(err)
	}
	p := newPod(t, PortMapping{Protocol: "tcp", ContainerPort: 80, HostPort: 8080})
	at, err := n.Setup(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("10.9.8.7"), netip.MustParseAddr("fd00::7")}
	if at.Network != "testnet" || len(at.IPs) != 2 || at.IPs[0] != want[0] || at.IPs[1] != want[1] || at.MAC == "" || !json.Valid(at.Result) {
		t.Errorf("attachment %+v", at)
	}
	got := calls()
	if len(got) != 2 || !strings.HasPrefix(got[0], "ADD first ns=yes") || !strings.Contains(got[0], "K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID="+p.ID) ||
		!strings.Contains(got[1], `"hostPort":8080`) {
		t.Errorf("calls %q", got)
	}
	// The pod keeps its network when the folder changes meanwhile, and DEL works
	// without the namespace.
	if err := netns.Remove(filepath.Dir(p.NetNS)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Teardown(t.Context(), p, at.Network); err != nil {
			t.Fatal(err)
		}
	}
	if got := calls(); len(got) != 4 || !strings.HasPrefix(got[0], "DEL second ns= ") || !strings.HasPrefix(got[1], "DEL first ns= ") {
		t.Errorf("calls %q", got)
	}
}

func TestFailedPluginIsUndone(t *testing.T) {
	plugins, calls := fakeNetwork(t)
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if err := os.WriteFile(filepath.Join(plugins.BinDirs[0], "fail-second-ADD"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := LoadPlugins(plugins)
	if err != nil {
		t.Fatal(err)
	}
	p := newPod(t)
	if _, err := n.Setup(t.Context(), p); err == nil || !strings.Contains(err.Error(), "out of cheese") {
		t.Errorf("got %v", err)
	}
	if got := calls(); len(got) != 4 || !strings.HasPrefix(got[3], "DEL first") {
		t.Errorf("calls %q", got)
	}
}

func TestNetworkNotReadySaysWhy(t *testing.T) {
	plugins, _ := fakeNetwork(t)
	n := &Network{cfg: Config{Plugins: plugins}}
	missing := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"no-such-plugin"}]}`
	for want, doc := range map[string]string{"no-such-plugin": missing, "00-bad.conflist": "{"} {
		conf := t.TempDir()
		if err := os.WriteFile(filepath.Join(conf, "00-bad.conflist"), []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		n.cfg.Plugins.ConfDir = conf
		if err := n.Status(t.Context()); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	n.cfg.Plugins.ConfDir = t.TempDir() // empty: our bridge
	if err := n.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTeardownOfANetworkThatIsGone(t *testing.T) {
	n, err := Open(t.Context(), Config{Bridge: newConfig(t), Plugins: PluginsConfig{ConfDir: t.TempDir()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	err = n.Teardown(context.WithoutCancel(t.Context()), Pod{ID: "x"}, "gone")
	if err == nil || !strings.Contains(err.Error(), "no longer configured") {
		t.Errorf("got %v", err)
	}
}
