package safepath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func lstat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func give(t *testing.T, dir string, gid int, ifNeeded bool) error {
	t.Helper()
	root, err := os.OpenFile(dir, unix.O_PATH, 0)
	must(t, err)
	defer func() { _ = root.Close() }()
	return GiveGroup(t.Context(), root, gid, ifNeeded)
}

// TestGiveGroup: everything in the tree and nothing outside of it, with the modes that fsGroup promises.
func TestGiveGroup(t *testing.T) {
	dir, host := t.TempDir(), filepath.Join(t.TempDir(), "host")
	must(t, os.WriteFile(host, nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/f"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "a/prog"), nil, 0o700))
	must(t, os.Chmod(filepath.Join(dir, "a/prog"), 0o700|os.ModeSetuid))
	must(t, os.Symlink(host, filepath.Join(dir, "a/link")))
	must(t, unix.Mkfifo(filepath.Join(dir, "a/pipe"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "mnt"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "mntfile"), nil, 0o600))
	foreign := t.TempDir()
	must(t, os.WriteFile(filepath.Join(foreign, "f"), nil, 0o600))
	for from, to := range map[string]string{foreign: "mnt", host: "mntfile"} {
		must(t, unix.Mount(from, filepath.Join(dir, to), "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, to), unix.MNT_DETACH)) })
	}
	must(t, give(t, dir, 4242, true))
	for path, mode := range map[string]uint32{
		"": 0o2770, "a": 0o2770, "a/b": 0o2770, "a/b/f": 0o660, "a/prog": 0o4760, "a/pipe": 0o660, "a/link": 0o777,
	} {
		if st := lstat(t, filepath.Join(dir, path)); st.Gid != 4242 || st.Mode&mode != mode {
			t.Errorf("%q: %d, %o", path, st.Gid, st.Mode)
		}
	}
	for _, path := range []string{host, foreign, filepath.Join(foreign, "f")} {
		if st := lstat(t, path); st.Gid == 4242 || st.Mode&0o020 != 0 {
			t.Errorf("%s: %d, %o", path, st.Gid, st.Mode)
		}
	}
	must(t, os.Chmod(filepath.Join(dir, "a/b/f"), 0o600))
	must(t, give(t, dir, 4242, true))
	if st := lstat(t, filepath.Join(dir, "a/b/f")); st.Mode&0o777 != 0o600 {
		t.Error("the tree was changed although its root was right")
	}
	must(t, give(t, dir, 4242, false))
	if st := lstat(t, filepath.Join(dir, "a/b/f")); st.Mode&0o777 != 0o660 {
		t.Error("the tree was not changed")
	}
}

func TestGiveGroupStops(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	root, err := os.OpenFile(dir, unix.O_PATH, 0)
	must(t, err)
	defer func() { _ = root.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := GiveGroup(ctx, root, 4242, true); !errors.Is(err, context.Canceled) || lstat(t, dir).Gid == 4242 {
		t.Errorf("%v", err)
	}
	must(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", deepestGroup+1)), 0o700))
	if err := give(t, dir, 4242, false); !errors.Is(err, ErrTooDeep) || lstat(t, dir).Gid == 4242 {
		t.Errorf("a tree without a bottom: %v", err)
	}
}

// TestGiveGroupRace: somebody exchanges what is in the tree with links to the host's files meanwhile.
func TestGiveGroupRace(t *testing.T) {
	dir, host := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(host, "f"), nil, 0o600))
	a, link := filepath.Join(dir, "a"), filepath.Join(dir, "link")
	must(t, os.MkdirAll(filepath.Join(a, "b"), 0o700))
	must(t, os.WriteFile(filepath.Join(a, "b/f"), nil, 0o600))
	must(t, os.Symlink(host, link))
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, a, unix.RENAME_EXCHANGE)
			}
		}
	})
	for i := range 500 {
		must(t, give(t, dir, 5000+i, false))
		for _, path := range []string{host, filepath.Join(host, "f")} {
			if st := lstat(t, path); st.Gid >= 5000 {
				t.Fatalf("%s was given away", path)
			}
		}
	}
	close(stop)
	attacker.Wait()
}
