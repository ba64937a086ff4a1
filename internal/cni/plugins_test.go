package cni

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wherry.dev/internal/netns"
)

// fakePlugin is a CNI plugin in shell: it makes a link in the namespace, answers ADD with an
// address, and logs how it was called.
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
	n, err := Open(t.Context(), Config{Bridge: bridge, Plugins: plugins}, nil, nil)
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
	// The pod keeps its network if the folder changes in the meantime, and DEL works without the
	// namespace.
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
	failPlugin(t, plugins, "second", "ADD")
	n := openPlugins(t, plugins)
	p := newPod(t)
	if _, err := n.Setup(t.Context(), p); err == nil || !strings.Contains(err.Error(), "out of cheese") {
		t.Errorf("got %v", err)
	}
	if got := calls(); len(got) != 4 || !strings.HasPrefix(got[3], "DEL first") {
		t.Errorf("calls %q", got)
	}
	if ids, err := plugins.attachedIDs(); err != nil || len(ids) != 0 {
		t.Errorf("records left: %v, %v", ids, err)
	}
}

// failPlugin makes the plugin answer the command with an error.
func failPlugin(t *testing.T, cfg PluginsConfig, plugin, command string) string {
	t.Helper()
	path := filepath.Join(cfg.BinDirs[0], "fail-"+plugin+"-"+command)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// openPlugins opens a Network without a bridge.
func openPlugins(t *testing.T, cfg PluginsConfig, known ...string) *Network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	ids := map[string]bool{}
	for _, id := range known {
		ids[id] = true
	}
	n, err := Open(t.Context(), Config{Bridge: BridgeConfig{Dir: t.TempDir()}, Plugins: cfg, PluginsOnly: true}, nil, ids)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func TestNetworkNotReadySaysWhy(t *testing.T) {
	plugins, _ := fakeNetwork(t)
	missing := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"no-such-plugin"}]}`
	future := `{"cniVersion":"2.0.0","name":"n","plugins":[{"type":"first"}]}`
	older := `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"first"}]}`
	for want, doc := range map[string]string{
		"CNI plugin no-such-plugin was not found in": missing, "00-bad.conflist": "{",
		`cniVersion "2.0.0" is not supported`: future, `plugin first does not support config version "1.1.0"`: older,
	} {
		plugins.ConfDir = t.TempDir()
		n := openPlugins(t, plugins)
		err := n.Status(t.Context())
		if !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "cni plugin not initialized: no CNI network is configured in "+plugins.ConfDir) {
			t.Errorf("an empty folder: %v", err)
		}
		if _, err := n.Setup(t.Context(), Pod{ID: "x"}); !errors.Is(err, ErrNotReady) {
			t.Errorf("a pod without a network: %v", err)
		}
		if err := os.WriteFile(filepath.Join(plugins.ConfDir, "00-bad.conflist"), []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := n.Status(t.Context()); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		// The folder is corrected, and the network is ready.
		good := `{"cniVersion":"1.0.0","name":"good","plugins":[{"type":"first"}]}`
		if err := os.WriteFile(filepath.Join(plugins.ConfDir, "00-bad.conflist"), []byte(good), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := n.Status(t.Context()); err != nil {
			t.Error(err)
		}
		if err := os.Remove(filepath.Join(plugins.ConfDir, "00-bad.conflist")); err != nil {
			t.Fatal(err)
		}
		if err := n.Status(t.Context()); !errors.Is(err, ErrNotReady) {
			t.Errorf("after its configuration was removed: %v", err)
		}
	}
}

func TestAnEmptyFolderIsOurBridge(t *testing.T) {
	n, err := Open(t.Context(), Config{Bridge: newConfig(t), Plugins: PluginsConfig{ConfDir: t.TempDir(), CacheDir: t.TempDir()}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	if err := n.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOldFormOfConfiguration(t *testing.T) {
	plugins, calls := fakeNetwork(t)
	plugins.ConfDir = t.TempDir()
	doc := `{"cniVersion":"0.4.0","name":"old","type":"first","capabilities":{"portMappings":true}}`
	if err := os.WriteFile(filepath.Join(plugins.ConfDir, "10-old.conf"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	n := openPlugins(t, plugins)
	p := newPod(t, PortMapping{Protocol: "tcp", ContainerPort: 80, HostPort: 8080})
	at, err := n.Setup(t.Context(), p)
	if err != nil || at.Network != "old" {
		t.Fatalf("%+v, %v", at, err)
	}
	if err := n.Teardown(t.Context(), p, at.Network); err != nil {
		t.Fatal(err)
	}
	if got := calls(); len(got) != 2 || !strings.Contains(got[1], `"hostPort":8080`) {
		t.Errorf("calls %q", got)
	}
}

// TestPodLeavesTheNetworkThatItJoined: with the configuration of that time, even if the folder is
// empty and the process is another one.
func TestPodLeavesTheNetworkThatItJoined(t *testing.T) {
	plugins, calls := fakeNetwork(t)
	n := openPlugins(t, plugins)
	p, q := newPod(t), newPod(t)
	at, err := n.Setup(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Setup(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	calls()
	if err := os.Remove(filepath.Join(plugins.ConfDir, "10-test.conflist")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(plugins.CacheDir, "results")); err != nil { // of libcni
		t.Fatal(err)
	}
	n = openPlugins(t, plugins, p.ID, q.ID)
	if err := n.Teardown(t.Context(), p, at.Network); err != nil {
		t.Fatal(err)
	}
	if err := n.Teardown(t.Context(), q, ""); err != nil { // killed before the attachment was recorded
		t.Fatal(err)
	}
	if got := calls(); len(got) != 4 || !strings.HasPrefix(got[0], "DEL second ns=yes") || !strings.Contains(got[3], q.ID) {
		t.Errorf("calls %q", got)
	}
}

func TestNetworkThatIsGoneDoesNotBlockRemoval(t *testing.T) {
	plugins, calls := fakeNetwork(t)
	n := openPlugins(t, plugins)
	if err := n.Teardown(t.Context(), Pod{ID: "x"}, "gone"); err != nil {
		t.Error(err)
	}
	if got := calls(); len(got) != 1 || got[0] != "" {
		t.Errorf("plugins of another network were called: %q", got)
	}
	// The record is corrupt: DEL uses the network of the same name that is configured now.
	p := newPod(t)
	if _, err := n.Setup(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	calls()
	if err := os.WriteFile(plugins.recordPath(p.ID), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Teardown(t.Context(), p, "testnet"); err != nil {
		t.Fatal(err)
	}
	if got := calls(); len(got) != 2 || !strings.HasPrefix(got[1], "DEL first") {
		t.Errorf("calls %q", got)
	}
}

func TestFailedDelIsRepeated(t *testing.T) {
	plugins, _ := fakeNetwork(t)
	n := openPlugins(t, plugins)
	p := newPod(t)
	if _, err := n.Setup(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	fail := failPlugin(t, plugins, "first", "DEL")
	err := n.Teardown(t.Context(), p, "testnet")
	if err == nil || !strings.Contains(err.Error(), "testnet") || !strings.Contains(err.Error(), "CNI plugin first") {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
	if err := n.Teardown(t.Context(), p, "testnet"); err != nil {
		t.Error(err)
	}
}

func TestCapabilitiesReachThePluginsThatHaveThem(t *testing.T) {
	plugins, _ := fakeNetwork(t)
	doc := `{"cniVersion":"1.0.0","name":"testnet","plugins":[{"type":"first"},
	 {"type":"second","capabilities":{"bandwidth":true,"dns":true,"cgroupPath":true,"portMappings":true}}]}`
	if err := os.WriteFile(filepath.Join(plugins.ConfDir, "10-test.conflist"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(t.TempDir(), "stdin")
	for _, name := range []string{"first", "second"} {
		script := strings.Replace(fakePlugin, "conf=$(cat)", "conf=$(cat); [ $CNI_COMMAND = ADD ] && echo \"$conf\" > "+keep+"-"+name, 1)
		if err := os.WriteFile(filepath.Join(plugins.BinDirs[0], name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n := openPlugins(t, plugins)
	p := newPod(t, PortMapping{Protocol: "sctp", ContainerPort: 80, HostPort: 8080, HostIP: netip.MustParseAddr("::1")})
	p.Bandwidth, p.Cgroup = Bandwidth{Ingress: 1e6, Egress: 2e6}, "/pod"
	p.DNS = &DNS{Servers: []string{"192.0.2.1"}, Searches: []string{"a.b"}, Options: []string{"ndots:2"}}
	if _, err := n.Setup(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	var got struct {
		RuntimeConfig map[string]any
		PrevResult    map[string]any
	}
	for _, name := range []string{"first", "second"} {
		got.RuntimeConfig = nil
		stdin, err := os.ReadFile(keep + "-" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(stdin, &got); err != nil {
			t.Fatal(err)
		}
		if name == "first" && got.RuntimeConfig != nil {
			t.Errorf("a plugin without capabilities got %v", got.RuntimeConfig)
		}
	}
	have, err := json.Marshal(got.RuntimeConfig)
	want := `{"bandwidth":{"egressBurst":4294967295,"egressRate":2000000,"ingressBurst":4294967295,"ingressRate":1000000},"cgroupPath":"/pod",` +
		`"dns":{"options":["ndots:2"],"searches":["a.b"],"servers":["192.0.2.1"]},` +
		`"portMappings":[{"containerPort":80,"hostIP":"::1","hostPort":8080,"protocol":"sctp"}]}`
	if err != nil || string(have) != want || got.PrevResult == nil {
		t.Errorf("runtimeConfig %s\nwant %s\nprevResult %v", have, want, got.PrevResult)
	}
}
