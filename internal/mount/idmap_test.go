package mount

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/netns"
)

func TestIDMappedMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 70000, Size: 1000}}
	userns, err := netns.OpenUser(netns.IDMap{UIDs: one, GIDs: one})
	must(t, err)
	defer func() { _ = userns.Close() }()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"lower", "mapped", "merged", "upper", "work"} {
		must(t, os.Mkdir(at(d), 0o755))
	}
	must(t, os.WriteFile(at("lower/file"), []byte("x"), 0o600))
	must(t, os.Chown(at("lower/file"), 7, 8))
	t.Cleanup(func() { must(t, UnmountUnder(dir)) })
	owner := func(path string, uid, gid uint32) {
		t.Helper()
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		if st.Uid != uid || st.Gid != gid {
			t.Errorf("%s belongs to %d:%d, want %d:%d", path, st.Uid, st.Gid, uid, gid)
		}
	}
	must(t, Copy(at("lower"), at("mapped"), userns, true))
	owner(at("mapped/file"), 70007, 70008)
	owner(at("lower/file"), 7, 8)
	copies, err := CopyAll([]string{at("lower")}, at("scratch"), userns)
	must(t, err)
	must(t, Overlay(at("merged"), copies, at("upper"), at("work")))
	must(t, RemoveCopies(at("scratch")))
	owner(at("merged/file"), 70007, 70008)
	must(t, os.WriteFile(at("merged/file"), []byte("copied up"), 0o600))
	owner(at("upper/file"), 70007, 70008)
	if _, err := os.Stat(at("lower/file")); err != nil {
		t.Errorf("the original is gone: %v", err)
	}
}

// TestRemovingACopyLeavesTheOriginal: with shared mounts an unmount would propagate.
func TestRemovingACopyLeavesTheOriginal(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, Tmpfs(at("shared"), 0o755, 0))
	must(t, unix.Mount("", at("shared"), "", unix.MS_SHARED, ""))
	t.Cleanup(func() { must(t, UnmountUnder(dir)) })
	must(t, Tmpfs(at("shared/sub"), 0o755, 0))
	must(t, os.WriteFile(at("shared/sub/file"), nil, 0o600))
	must(t, os.MkdirAll(at("copies/0"), 0o755))
	must(t, Copy(at("shared"), at("copies/0"), nil, false))
	if _, err := os.Stat(at("copies/0/sub/file")); err != nil {
		t.Error(err)
	}
	must(t, Tmpfs(at("shared/later"), 0o755, 0))
	if ok, err := Mounted(at("copies/0/later")); err != nil || !ok {
		t.Errorf("a copy that is not private does not show what is mounted later: %v", err)
	}
	must(t, RemoveCopies(at("copies")))
	if _, err := os.Stat(at("shared/sub/file")); err != nil {
		t.Errorf("the original's mount is gone: %v", err)
	}
	if _, err := os.Stat(at("copies")); !os.IsNotExist(err) {
		t.Errorf("the copies are still there: %v", err)
	}
}
