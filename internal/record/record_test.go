package record

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"wherry.dev/test/disks"
)

// A node also starts on a full disk: most of what it writes is there already.
func TestFullDiskKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	disks.Tmpfs(t, dir, "size=64k")
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

// A killed writer's temporary file must not block the next write, and a failed write used to
// leave its file for ever.
func TestWriteCachedLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.json")
	if err := os.WriteFile(filepath.Join(dir, tmpMark+"r.json"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteCached(path, 3, map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	var got map[string]int
	if version, err := Read(path, &got); err != nil || version != 3 || got["a"] != 1 {
		t.Errorf("%d %v %v", version, got, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil { // in the way of the rename
		t.Fatal(err)
	}
	if err := WriteCached(path, 3, got); err == nil {
		t.Error("a record in a folder's place")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
