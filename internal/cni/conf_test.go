package cni

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/safepath"
)

// FuzzConfigurationFile: whatever is in the CNI folder is a network or an error; a network
// survives being recorded.
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

// TestPipeInTheFolder: reading it used to block every pod for ever, and the process's exit.
func TestPipeInTheFolder(t *testing.T) {
	cfg := PluginsConfig{ConfDir: t.TempDir()}
	list := []byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`)
	for _, err := range []error{
		unix.Mkfifo(filepath.Join(cfg.ConfDir, "0.conflist"), 0o600),
		os.WriteFile(filepath.Join(cfg.ConfDir, "data"), list, 0o600),
		os.Symlink("data", filepath.Join(cfg.ConfDir, "1.conflist")), // as of a mounted ConfigMap
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c, skipped, err := loadChain(cfg)
	if err != nil || c.name() != "n" || !errors.Is(skipped, safepath.ErrNotRegular) {
		t.Errorf("%+v, skipped %v, %v", c, skipped, err)
	}
	if err := unix.Mkfifo(filepath.Join(cfg.ConfDir, "2.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(cfg.ConfDir, "1.conflist")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := loadChain(cfg); !errors.Is(err, safepath.ErrNotRegular) {
		t.Errorf("with nothing else in it: %v", err)
	}
}

// TestPipeAmongPlugins: the plugins of a network may have files of their own.
func TestPipeAmongPlugins(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "n.conflist"), []byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`), 0o600),
		os.Mkdir(filepath.Join(dir, "n"), 0o755), os.WriteFile(filepath.Join(dir, "n/b.conf"), []byte(`{"type":"b"}`), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c, _, err := loadChain(PluginsConfig{ConfDir: dir})
	if err != nil || len(c.list.Plugins) != 2 || c.list.Plugins[1].Network.Type != "b" {
		t.Errorf("%+v, %v", c, err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "n/c.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := loadChain(PluginsConfig{ConfDir: dir}); !errors.Is(err, safepath.ErrNotRegular) {
		t.Errorf("got %v", err)
	}
}
