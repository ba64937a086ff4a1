package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestOverlayOfManyLayers exceeds the page of options that mount(2) takes.
func TestOverlayOfManyLayers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, n := range []int{1, 3, 120} {
		dir := t.TempDir()
		var lower []string
		for i := range n {
			l := filepath.Join(dir, fmt.Sprintf("layer,with:a-name-%030d", i))
			if n > 100 {
				l = filepath.Join(dir, fmt.Sprintf("layer-with-a-name-%030d", i))
			}
			must(t, os.Mkdir(l, 0o755))
			must(t, os.WriteFile(filepath.Join(l, "top"), fmt.Append(nil, i), 0o644))
			must(t, os.WriteFile(filepath.Join(l, fmt.Sprint("f", i)), nil, 0o644))
			lower = append(lower, l)
		}
		dst := filepath.Join(dir, "merged")
		for _, d := range []string{"merged", "upper", "work"} {
			must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
		}
		must(t, Overlay(dst, lower, filepath.Join(dir, "upper"), filepath.Join(dir, "work")))
		t.Cleanup(func() { must(t, Unmount(dst)) })
		got, err := os.ReadFile(filepath.Join(dst, "top"))
		if err != nil || string(got) != "0" {
			t.Errorf("%d layers: the topmost does not win: %q, %v", n, got, err)
		}
		if _, err := os.Stat(filepath.Join(dst, fmt.Sprint("f", n-1))); err != nil {
			t.Errorf("%d layers: %v", n, err)
		}
		must(t, os.WriteFile(filepath.Join(dst, "top"), []byte("w"), 0o644))
		must(t, RemoveTree(dst))
		if got, err := os.ReadFile(filepath.Join(lower[0], "top")); err != nil || string(got) != "0" {
			t.Errorf("%d layers: a layer was changed: %q, %v", n, got, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
