package mount

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// TestShare makes a folder on a private mount a shared one; again, and after a kill in the middle, it does what is left.
func TestShare(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	top := t.TempDir()
	if err := Tmpfs(top, 0o755, 1<<20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := UnmountUnder(top); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", top, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := func(name string) string {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(path, 0o750); err != nil {
			t.Fatal(err)
		}
		return path
	}
	shared := func(path string) (times int) {
		t.Helper()
		all, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if !strings.Contains(m.Optional, "shared:") {
				t.Errorf("%s is mounted and not shared", path)
			}
		}
		return len(all)
	}
	a := dir("a")
	for range 2 {
		if err := Share(a); err != nil || shared(a) != 1 {
			t.Errorf("%v, mounted %d times", err, shared(a))
		}
	}
	below := dir("a/b")
	if err := Share(below); err != nil || shared(below) != 0 {
		t.Errorf("it is on a shared mount: %v, mounted %d times", err, shared(below))
	}
	half := dir("half")
	if err := unix.Mount(half, half, "", unix.MS_BIND, ""); err != nil { // then it was killed
		t.Fatal(err)
	}
	if err := Share(half); err != nil || shared(half) != 1 {
		t.Errorf("%v, mounted %d times", err, shared(half))
	}
	full := dir("full")
	if err := Tmpfs(dir("full/volume"), 0o755, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := Share(full); !errors.Is(err, ErrMountsBelow) || shared(full) != 0 {
		t.Errorf("a volume would be out of sight: %v, mounted %d times", err, shared(full))
	}
}
