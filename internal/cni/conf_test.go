package cni

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzConfigurationFile: whatever lies in the CNI folder is a network or an error;
// a network survives being recorded.
func FuzzConfigurationFile(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"n","disableCheck":true,"plugins":[{"type":"a","capabilities":{"dns":true}},{"type":"b"}]}`))
	f.Add([]byte(`{"cniVersion":"0.3.1","name":"n","type":"a","ipam":{"type":"b"}}`))
	f.Add([]byte(`{"cniVersions":["1.0.0","1.1.0"],"name":"n","loadOnlyInlinedPlugins":true,"plugins":[{"type":"a"}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		cfg := PluginsConfig{ConfDir: t.TempDir(), CacheDir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(cfg.ConfDir, "a.conflist"), doc, 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := loadChain(cfg)
		if err != nil {
			return
		}
		if err := cfg.storeAttached(attached{Pod: Pod{ID: "x"}, Config: c.list.Bytes}); err != nil {
			t.Fatal(err)
		}
		_, again, err := cfg.readAttached("x")
		if err != nil {
			t.Fatalf("%s: recorded as %s: %v", doc, c.list.Bytes, err)
		}
		if again.name() != c.name() || len(again.list.Plugins) != len(c.list.Plugins) || again.list.CNIVersion != c.list.CNIVersion {
			t.Errorf("%s: recorded as %s", doc, c.list.Bytes)
		}
	})
}

func FuzzNetworkRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"data":{"pod":{"ID":"x"},"config":{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		cfg := PluginsConfig{CacheDir: t.TempDir()}
		if err := os.MkdirAll(cfg.recordDir(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(cfg.recordPath("x"), doc, 0o600); err != nil {
			t.Fatal(err)
		}
		if a, c, err := cfg.readAttached("x"); err == nil && (a.Pod.ID != "x" || c == nil) {
			t.Errorf("%s: %+v", doc, a)
		}
	})
}
