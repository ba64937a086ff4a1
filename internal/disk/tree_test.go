package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/safepath"
	"wherry.dev/test/disks"
)

func fill(t *testing.T, path string, kib int) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Repeat("x", kib<<10)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// deepen makes a chain of folders that is longer than a path can be, with a file at its end.
func deepen(t *testing.T, dir string, levels int) {
	t.Helper()
	t.Cleanup(func() {
		if err := safepath.RemoveAll(filepath.Join(dir, "d")); err != nil {
			t.Error(err)
		}
	})
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	file, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(file, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Close(file), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
}

func TestTree(t *testing.T) {
	dir := t.TempDir()
	disks.Tmpfs(t, dir, "size=64m")
	count := func(b Bounds) Used {
		t.Helper()
		u, err := Tree(dir, b)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	empty := count(Bounds{})
	fill(t, filepath.Join(dir, "a"), 64)
	if err := errors.Join(os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")), os.Symlink("/", filepath.Join(dir, "root")),
		os.Mkdir(filepath.Join(dir, "sub"), 0), os.Mkdir(filepath.Join(dir, "mount"), 0o700)); err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(dir, "sub", "c"), 64)
	disks.Tmpfs(t, filepath.Join(dir, "mount"), "size=8m")
	fill(t, filepath.Join(dir, "mount", "not counted"), 1024)
	if got := count(Bounds{}); got.Bytes-empty.Bytes != 128<<10 || got.Inodes-empty.Inodes != 4 {
		t.Errorf("%+v, want 128 KiB and 4 more than %+v: two files, a folder and a link", got, empty)
	}
	deepen(t, dir, 10_000)
	if got := count(Bounds{}); got.Inodes-empty.Inodes != 10_005 || got.Bytes-empty.Bytes != 1<<20+128<<10 {
		t.Errorf("%+v, with 10,000 folders in each other", got)
	}
	if got := count(Bounds{EnoughInodes: 100}); got.Inodes < 100 || got.Inodes > 200 {
		t.Errorf("%+v, of which 100 are enough", got)
	}
	if _, err := Tree(dir, Bounds{Until: time.Now()}); !errors.Is(err, ErrUnfinished) {
		t.Errorf("without any time: %v", err)
	}
	if got, err := Tree(filepath.Join(dir, "nothing"), Bounds{}); err != nil || got != (Used{}) {
		t.Errorf("nothing: %+v, %v", got, err)
	}
	if got, err := Tree(filepath.Join(dir, "a"), Bounds{}); err != nil || got.Inodes != 1 {
		t.Errorf("a file: %+v, %v", got, err)
	}
}

// A folder that is moved away meanwhile leads nowhere else.
func TestTreeThatMoves(t *testing.T) {
	dir, away := t.TempDir(), t.TempDir()
	stop, done := make(chan struct{}), make(chan struct{})
	deep := filepath.Join(dir, "a", "b", "c")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		fill(t, filepath.Join(away, "outside"+strings.Repeat("x", i)), 0)
	}
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(filepath.Join(dir, "a", "b"), filepath.Join(away, "b")) // whichever is there
				_ = os.Rename(filepath.Join(away, "b"), filepath.Join(dir, "a", "b"))
			}
		}
	}()
	for range 2000 {
		if u, err := Tree(dir, Bounds{}); err != nil || u.Inodes > 4 {
			t.Errorf("%+v, %v", u, err)
			break
		}
	}
	close(stop)
	<-done
}
