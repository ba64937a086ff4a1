package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/mount"
)

// hostFiles are files and a directory of root's that no pod may change.
type hostFiles struct {
	paths []string
	was   []unix.Stat_t
}

func newHostFiles(t *testing.T, n int) *hostFiles {
	t.Helper()
	dir := t.TempDir()
	h := &hostFiles{paths: []string{dir}}
	for i := range n {
		path := filepath.Join(dir, fmt.Sprint("f", i))
		if err := os.WriteFile(path, []byte("root's"), 0o600); err != nil {
			t.Fatal(err)
		}
		h.paths = append(h.paths, path)
	}
	for _, p := range h.paths {
		h.was = append(h.was, stat(t, p))
	}
	return h
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// check checks that mode, owner and content are unchanged.
func (h *hostFiles) check(t *testing.T) {
	t.Helper()
	for i, p := range h.paths {
		now := stat(t, p)
		if now.Mode != h.was[i].Mode || now.Uid != h.was[i].Uid || now.Gid != h.was[i].Gid || now.Mtim != h.was[i].Mtim {
			t.Fatalf("%s was %o %d:%d, is %o %d:%d", p, h.was[i].Mode, h.was[i].Uid, h.was[i].Gid, now.Mode, now.Uid, now.Gid)
		}
	}
}

// swap replaces a path, as soon as it exists, with a link to each of the host's files, as another
// container of the pod can, until stop is closed.
func (h *hostFiles) swap(vol, name string, stop <-chan struct{}) {
	path, away := filepath.Join(vol, name), filepath.Join(vol, "away")
	link := filepath.Join(vol, "link")
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		_ = os.Symlink(h.paths[i%len(h.paths)], link)
		// An exchange: the path always exists.
		if unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE) == nil {
			_ = os.Rename(link, away)
			_ = os.RemoveAll(away)
			_ = os.Remove(path)
		}
	}
}

// TestSubPathRace: a container replaces what is created for a subPath with links to the host's
// files. Their modes used to be set to that of the volume, including setuid.
func TestSubPathRace(t *testing.T) {
	vol, h := t.TempDir(), newHostFiles(t, 40)
	if err := os.Chmod(vol, 0o777|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "target")
	t.Cleanup(func() {
		if err := mount.Unmount(target); err != nil {
			t.Error(err)
		}
	})
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() { h.swap(vol, "a", stop) })
	defer attacker.Wait()
	defer close(stop)
	made := 0
	for i := range 800 {
		sub := "a"
		if i%2 == 1 {
			sub = "a/b"
		}
		if bindSubpath(vol, sub, target) == nil { // the result is the pod's own affair
			made++
			host := stat(t, target)
			for j, p := range h.paths {
				if host.Ino == h.was[j].Ino && host.Dev == h.was[j].Dev {
					t.Fatalf("the container sees %s", p)
				}
			}
		}
		h.check(t)
		_ = os.RemoveAll(filepath.Join(vol, "a"))
	}
	if made == 0 {
		t.Error("no subPath was ever made: nothing was tried")
	}
}

// TestContentRace: a container that made its configMap writable, as root of a user namespace can,
// replaces what the kubelet writes with links to the host's directories.
func TestContentRace(t *testing.T) {
	vol, h := t.TempDir(), newHostFiles(t, 1)
	link := filepath.Join(t.TempDir(), "link")
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			entries, _ := os.ReadDir(vol)
			for _, e := range entries {
				if e.IsDir() && os.Symlink(h.paths[0], link) == nil {
					_ = unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, filepath.Join(vol, e.Name()), unix.RENAME_EXCHANGE)
					_ = os.RemoveAll(link)
				}
			}
		}
	})
	defer attacker.Wait()
	defer close(stop)
	group := new(int64(1234))
	for i := range 100 {
		files := map[string]file{"f1": {data: fmt.Append(nil, i), mode: 0o644}, "d/e/f": {data: []byte("x"), mode: 0o666}}
		_ = writeAtomic(vol, files, group) // the result is the pod's own affair
		h.check(t)
	}
}

// TestSwollenHostsFile: when a container had filled its /etc/hosts, the kubelet used to read all of
// it into memory when the next container started.
func TestSwollenHostsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc-hosts")
	if err := writeInPlace(path, []byte("hosts")); err != nil {
		t.Fatal(err)
	}
	before := stat(t, path)
	if err := os.Truncate(path, 1<<43); err != nil {
		t.Fatal(err)
	}
	if err := writeInPlace(path, []byte("hosts")); err != nil {
		t.Fatal(err)
	}
	want(t, path, "hosts", 0o644)
	if stat(t, path).Ino != before.Ino {
		t.Error("the file was replaced: containers have the old one")
	}
}

// TestSubPathsThatLeadOut of the volume are refused, as upstream; links within it are followed.
func TestSubPathsThatLeadOut(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	top := t.TempDir()
	root := filepath.Join(top, "volume")
	if err := os.MkdirAll(filepath.Join(root, "a", "b"), 0o750); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		"up": "../", "above": "..", "full": root, "elsewhere": "/etc", "nowhere": "/not/there", "file": "/bin/sh",
		"a/back": "..", "a/far": "../..", "inside": "a/b", "missing": "a/c", "a/b/root": "../..",
	} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for sub, out := range map[string]bool{
		"up": true, "above": true, "full": true, "elsewhere": true, "nowhere": true, "file": true, "up/x": true, "elsewhere/x": true,
		"a/far": true, "a/far/volume": true,
		"a/back": false, "inside": false, "a/back/inside": false, "a/b/root": false, "new/one": false,
	} {
		target := filepath.Join(top, "target", filepath.Base(sub))
		err := bindSubpath(root, sub, target)
		if out && (err == nil || !strings.Contains(err.Error(), "leads out of the volume")) || !out && err != nil {
			t.Errorf("%s: %v", sub, err)
		}
		if err := mount.UnmountStack(target); err != nil {
			t.Fatal(err)
		}
	}
}
