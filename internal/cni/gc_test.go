package cni

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// gcNetwork is a network of CNI 1.1 whose plugin keeps a log.
func gcNetwork(t *testing.T) (PluginsConfig, func() []string) {
	t.Helper()
	cfg, calls := fakeNetwork(t)
	script := strings.ReplaceAll(fakePlugin, `"supportedVersions":["0.4.0","1.0.0"]`, `"supportedVersions":["1.1.0"]`)
	script = strings.Replace(script, `echo "$CNI_COMMAND`, `echo "$(echo "$conf" | tr -d '\n ' | grep -o '"cni.dev/valid-attachments":[^]]*]' ) $CNI_COMMAND`, 1)
	if err := os.WriteFile(filepath.Join(cfg.BinDirs[0], "first"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	doc := `{"cniVersion":"1.1.0","name":"testnet","plugins":[{"type":"first"}]}`
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "10-test.conflist"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return cfg, calls
}

func TestPluginsAreToldWhatIsValid(t *testing.T) {
	cfg, calls := gcNetwork(t)
	n := openPlugins(t, cfg)
	p := newPod(t)
	if _, err := n.Setup(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	calls()
	if _, err := n.gc(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"}] GC first`, p.ID)
	if got := calls(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("calls %q, want %s", got, want)
	}
	// A pod that is being attached may hold something that is not on the list.
	n.adds.RLock()
	again, err := n.gc(t.Context())
	n.adds.RUnlock()
	if got := calls(); err != nil || again != gcDelay || got[0] != "" {
		t.Errorf("GC during an ADD: again in %v, %v; calls %q", again, err, got)
	}
}

// TestSTATUSIsAskedSometimes: kubelets ask every few seconds, and each request would start all
// plugins.
func TestSTATUSIsAskedSometimes(t *testing.T) {
	cfg, calls := gcNetwork(t)
	n := openPlugins(t, cfg)
	for range 3 {
		if err := n.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := calls(); len(got) != 1 || !strings.Contains(got[0], "STATUS first") {
		t.Errorf("calls %q", got)
	}
	n.statusOK = time.Now().Add(-statusTrust)
	fail := failPlugin(t, cfg, "first", "STATUS")
	if err := n.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "CNI network testnet: CNI plugin first: out of cheese") {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
	if err := n.Status(t.Context()); err != nil {
		t.Errorf("a bad answer is remembered: %v", err)
	}
	if err := os.Remove(filepath.Join(cfg.BinDirs[0], "first")); err != nil {
		t.Fatal(err)
	}
	if err := n.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "CNI plugin first was not found in") {
		t.Errorf("its plugin was removed: %v", err)
	}
}

func TestGCRunsAtTheStartAndAfterRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Network{cfg: Config{Plugins: PluginsConfig{CacheDir: t.TempDir()}, PluginsOnly: true}, wake: make(chan struct{}, 1),
			abandoned: map[string]bool{}}
		// Removing lost sandboxes without a record needs no plugin; that they are forgotten shows
		// that GC ran.
		lose := func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.abandoned["lost"] = true
		}
		left := func() int {
			n.mu.Lock()
			defer n.mu.Unlock()
			return len(n.abandoned)
		}
		lose()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		synctest.Wait()
		if left() != 0 {
			t.Error("GC did not run at the start")
		}
		lose()
		time.Sleep(time.Hour)
		synctest.Wait()
		if left() != 1 {
			t.Error("GC ran for no reason")
		}
		for range 100 {
			n.collect()
		}
		time.Sleep(gcDelay - time.Second)
		synctest.Wait()
		if left() != 1 {
			t.Error("GC did not wait for more removals")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if left() != 0 {
			t.Error("GC did not run after removals")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
