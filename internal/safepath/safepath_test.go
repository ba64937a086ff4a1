package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func TestLinksStayInTheFolder(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("host"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "in"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "in/secret"), []byte("pod"), 0o600))
	for name, to := range map[string]string{
		"absolute": outside, "up": strings.Repeat("../", 20) + outside[1:], "magic": "/proc/self/root" + outside,
		"magic-cwd": "/proc/self/cwd", "itself": "itself",
	} {
		must(t, os.Symlink(to, filepath.Join(dir, name)))
		if f, err := open(t, dir).Regular(name + "/secret"); err == nil {
			t.Errorf("%s -> %s leads out: %v", name, to, f.Close())
		}
	}
	must(t, os.Symlink("/in", filepath.Join(dir, "own")))
	f, err := open(t, dir).Regular("own/secret")
	must(t, err)
	text, err := ReadAll(f, 3)
	if err = errors.Join(err, f.Close()); err != nil || string(text) != "pod" {
		t.Errorf("an absolute link in the folder: %q, %v", text, err)
	}
}

// opens counts how often files of a folder are really opened: opening only a reference to a file
// (O_PATH) gives no event.
func opens(t *testing.T, dir string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	_, err = unix.InotifyAddWatch(fd, dir, unix.IN_OPEN)
	must(t, err)
	return func() int {
		n, err := unix.Read(fd, make([]byte, 4096))
		if errors.Is(err, unix.EAGAIN) {
			return 0
		}
		must(t, err)
		return n
	}
}

// A pipe would block whoever opens it, and a device does whatever it does: opening a watchdog
// restarts the machine.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	must(t, unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o644, 0))
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	for _, name := range []string{"pipe", "device", "socket", "folder"} {
		must(t, os.Symlink(name, filepath.Join(dir, "to-"+name)))
	}
	seen := opens(t, dir)
	for _, name := range []string{"pipe", "device", "socket", "folder", "to-pipe", "to-device", "to-socket", "to-folder"} {
		if _, err := ReadFile(filepath.Join(dir, name), 100); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := open(t, dir).Regular(name); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s in its folder: %v", name, err)
		}
	}
	if n := seen(); n != 0 {
		t.Error("something was opened")
	}
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("12345"), 0o600))
	must(t, os.Symlink("file", filepath.Join(dir, "to-file")))
	if text, err := ReadFile(filepath.Join(dir, "to-file"), 5); err != nil || string(text) != "12345" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := ReadFile(filepath.Join(dir, "file"), 4); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a file of five bytes where four are taken: %v", err)
	}
	if seen() == 0 {
		t.Error("the watch told nothing of files that were opened: nothing was tested")
	}
	if _, err := ReadFile(filepath.Join(dir, "absent"), 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
}

func TestFoldersHaveTheirModeWhateverTheUmask(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777|fs.ModeSetgid))
	must(t, os.Chown(dir, 0, 1234))
	f, err := open(t, dir).MakeAll("a/b/c", 0o777)
	must(t, err)
	must(t, f.Close())
	f, err = open(t, dir).MakeAllFor(1000, "/a/own/deep", 0o755)
	must(t, err)
	must(t, f.Close())
	for path, want := range map[string]string{
		"a": "drwxrwsrwx 0:1234", "a/b": "drwxrwsrwx 0:1234", "a/b/c": "drwxrwsrwx 0:1234",
		"a/own": "drwxr-sr-x 1000:1000", "a/own/deep": "drwxr-sr-x 1000:1000",
	} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(dir, path), &st))
		setgid := "x"
		if st.Mode&unix.S_ISGID != 0 {
			setgid = "s"
		}
		perm := fs.FileMode(st.Mode & 0o777).String()[1:]
		if got := fmt.Sprintf("d%s%s%s %d:%d", perm[:5], setgid, perm[6:], st.Uid, st.Gid); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	var st unix.Stat_t
	must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o666))
	must(t, unix.Lstat(filepath.Join(dir, "f"), &st))
	old := unix.Umask(0o22)
	unix.Umask(old)
	if st.Mode&0o777 != 0o666&^uint32(old) {
		t.Errorf("the process's own umask was changed: a file is %o", st.Mode)
	}
}

func TestRemovalStopsAtAMount(t *testing.T) {
	dir, other := filepath.Join(t.TempDir(), "pod"), t.TempDir()
	must(t, os.WriteFile(filepath.Join(other, "keep"), []byte("x"), 0o600))
	for _, at := range []string{filepath.Join(dir, "a/b"), dir} {
		must(t, os.MkdirAll(at, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "beside"), nil, 0o600))
		must(t, unix.Mount(other, at, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		if err := RemoveAll(dir); !errors.Is(err, ErrMounted) {
			t.Errorf("mounted at %s: %v", at, err)
		}
		if _, err := os.Stat(filepath.Join(other, "keep")); err != nil {
			t.Fatalf("what was mounted is gone: %v", err)
		}
		must(t, unix.Unmount(at, 0))
		must(t, RemoveAll(dir))
		must(t, RemoveAll(dir)) // again
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the tree is still there: %v", err)
		}
	}
}

// A path that was accidentally empty used to mean the process's working directory, and all of it
// was removed: a failed start of a test's node removed the checkout.
func TestAnEmptyPathRemovesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	must(t, os.MkdirAll("a/b", 0o755))
	for _, path := range []string{"", ".", "a", "./a/b"} {
		if err := RemoveAll(path); err == nil {
			t.Errorf("RemoveAll(%q) is done", path)
		}
		if err := Empty(path); err == nil {
			t.Errorf("Empty(%q) is done", path)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a/b")); err != nil {
		t.Error(err)
	}
	for path, ok := range map[string]bool{"/": false, "//": false, "/a/..": false, "/a": true, "/a/": true, "a": false, "": false} {
		if err := Full(path); (err == nil) != ok {
			t.Errorf("Full(%q): %v", path, err)
		}
	}
}

func TestEmptyLeavesTheFolder(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, Empty(dir))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	must(t, Empty(filepath.Join(dir, "absent")))
}

// A stranger can nest folders deeper than any path and any limit on open files.
func TestDeepTreeIsRemovedWithFewDescriptors(t *testing.T) {
	memory := t.TempDir() // on a busy disk it takes a minute
	must(t, unix.Mount("tmpfs", memory, "tmpfs", 0, "size=16m"))
	t.Cleanup(func() { must(t, unix.Unmount(memory, unix.MNT_DETACH)) })
	dir := filepath.Join(memory, "deep")
	must(t, os.Mkdir(dir, 0o755))
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	const depth = 5000
	for range depth {
		must(t, unix.Mkdirat(at, "a-long-name-in-a-deep-tree", 0o755))
		next, err := unix.Openat(at, "a-long-name-in-a-deep-tree", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, errors.Join(err, unix.Close(at)))
		at = next
	}
	must(t, unix.Close(at))
	var most unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &most))
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	few := most
	few.Cur = uint64(len(fds) + deepest + 8)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	err = RemoveAll(dir)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &most))
	must(t, err)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

// While a tree is removed somebody swaps its folders for links to the host's.
func TestRemovalRace(t *testing.T) {
	host := t.TempDir()
	for i := range 20 {
		must(t, os.WriteFile(filepath.Join(host, fmt.Sprint(i)), []byte("root's"), 0o600))
	}
	dir := filepath.Join(t.TempDir(), "volume")
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for path := filepath.Join(dir, "a"); ; {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Symlink(host, path+"-link")
			_ = unix.Renameat2(unix.AT_FDCWD, path+"-link", unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
		}
	})
	for range 500 {
		_ = os.Mkdir(dir, 0o755)
		d := open(t, dir)
		if f, err := d.MakeAll("a/b/c", 0o755); err == nil {
			must(t, f.Close())
		}
		_ = RemoveAll(dir) // may fail because of what is made in it meanwhile
	}
	close(stop)
	attacker.Wait()
	must(t, RemoveAll(dir))
	if left, err := os.ReadDir(host); err != nil || len(left) != 20 {
		t.Errorf("of the host's 20 files %d are left, %v", len(left), err)
	}
}
