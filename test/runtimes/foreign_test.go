package runtimes

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"wherry.dev/internal/netns"
)

// TestBridgedLeavesNothing: the bridge plugin keeps its rules if the pod's network namespace is gone.
func TestBridgedLeavesNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	n, err := newBridged(t.TempDir(), newID())
	if err != nil {
		t.Skip(err)
	}
	other, err := newBridged(t.TempDir(), newID())
	if err != nil {
		t.Fatal(err)
	}
	host, pod := namespace(t), namespace(t)
	err = netns.Do(func() error {
		for _, x := range []bridged{n, other} {
			callBridge(t, x, "ADD", pod, "e"+x.id)
			callBridge(t, x, "DEL", "", "e"+x.id)
		}
		if left := natRules(t); !strings.Contains(left, n.id) {
			t.Errorf("there is nothing to remove: %s", left)
		}
		return n.remove(t.Context())
	}, host)
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Do(func() error {
		left := natRules(t)
		if strings.Contains(left, n.id) || !strings.Contains(left, other.id) || strings.Count(left, ":CNI-") != 1 {
			t.Errorf("left: %s", left)
		}
		if exec.CommandContext(t.Context(), "ip", "link", "show", n.id).Run() == nil {
			t.Error("the bridge is left")
		}
		return n.remove(t.Context()) // again
	}, host)
	if err != nil {
		t.Error(err)
	}
}

func namespace(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ns")
	if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return netns.Path(dir, netns.Net)
}

// callBridge calls the plugin with the network's configuration, as a runtime does.
func callBridge(t *testing.T, n bridged, command, ns, link string) {
	t.Helper()
	list, err := os.ReadFile(filepath.Join(n.conf, "net.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	_, conf, _ := strings.Cut(string(list), `"plugins": [{`)
	conf = strings.TrimSuffix(strings.TrimSpace(conf), "]}")
	cmd := exec.CommandContext(t.Context(), filepath.Join(n.plugins, "bridge"))
	cmd.Stdin = strings.NewReader(`{"cniVersion": "0.4.0", "name": "` + n.id + `",` + conf)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID=c", "CNI_NETNS="+ns,
		"CNI_IFNAME="+link, "CNI_PATH="+n.plugins)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

func natRules(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "iptables-save", "-t", "nat").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
