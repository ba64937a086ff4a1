package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wherry.dev/internal/cni/plugin"
)

func TestInstallPlugins(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // again: an upgrade
		if err := installPlugins(io.Discard, dir, false); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range plugin.Names() {
		if to, err := os.Readlink(filepath.Join(dir, name)); err != nil || to != self { // no wherry-cni here
			t.Errorf("%s leads to %s, %v", name, to, err)
		}
	}
	foreign := filepath.Join(dir, "bridge")
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(foreign, []byte("somebody else's"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := installPlugins(io.Discard, dir, false); err == nil || !strings.Contains(err.Error(), foreign+" already exists") {
		t.Errorf("over somebody else's: %v", err)
	}
	if err := installPlugins(io.Discard, dir, true); err != nil {
		t.Error(err)
	}
	if _, err := os.Readlink(foreign); err != nil {
		t.Errorf("--force has not replaced it: %v", err)
	}
}
