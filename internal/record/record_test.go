package record

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A node starts on a full disk, too: what it writes is mostly there already.
func TestFullDiskKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "r")
	if err := Write(path, 1, "old"); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if err := os.WriteFile(filepath.Join(dir, "fill"+string(rune('a'+i))), make([]byte, 4096), 0o600); err != nil {
			break
		}
	}
	if err := Write(path, 1, "old"); err != nil {
		t.Errorf("the same: %v", err)
	}
	if err := Write(path, 1, "new"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("something else: %v", err)
	}
	var got string
	if _, err := Read(path, &got); err != nil || got != "old" {
		t.Errorf("there is %q, %v", got, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, tmpMark+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
