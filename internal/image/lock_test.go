package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Any failure to lock the store used to be reported as another process that is using it.
func TestLockThatFailsIsNobodyElses(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil { // what is closed cannot be locked
		t.Fatal(err)
	}
	if err := takeLock(f, dir); !errors.Is(err, unix.EBADF) || strings.Contains(err.Error(), "another process") {
		t.Errorf("got %v", err)
	}
	held, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	if _, err := lockDir(dir); err == nil || !strings.Contains(err.Error(), "another process is using the image store "+dir) {
		t.Errorf("while it is held: %v", err)
	}
}
