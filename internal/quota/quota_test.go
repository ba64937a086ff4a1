package quota

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func folder(t *testing.T, path string) *os.File {
	t.Helper()
	if err := os.MkdirAll(path, 0o750); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// asContainer does something as the processes of ordinary containers do it: without CAP_SYS_RESOURCE, which goes past quotas.
func asContainer(t *testing.T, do func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&hdr, &data[0]); err != nil {
			done <- err
			return
		}
		data[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
		if err := unix.Capset(&hdr, &data[0]); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}

func write(t *testing.T, path string, n int) error {
	t.Helper()
	return asContainer(t, func() error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		_, err = f.Write(bytes.Repeat([]byte("x"), n))
		return errors.Join(err, f.Sync(), f.Close())
	})
}

// TestWithoutQuotas says that there are none; whoever wants limits goes on without.
func TestWithoutQuotas(t *testing.T) {
	dir := folder(t, t.TempDir())
	on, err := Enforced(dir)
	if err != nil {
		t.Fatal(err)
	}
	if on {
		t.Skip("this file system enforces quotas: TestLimit")
	}
	if err := Limit(dir, 1<<20); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	if project, err := Project(dir); project != 0 || err != nil {
		t.Error(project, err)
	}
	if err := Release(dir); err != nil {
		t.Error(err)
	}
}

// TestLimit holds for everything below a directory, and can be raised, lowered and removed.
func TestLimit(t *testing.T) {
	root := t.TempDir()
	dir, other := folder(t, filepath.Join(root, "a")), folder(t, filepath.Join(root, "b"))
	if on, err := Enforced(dir); err != nil || !on {
		t.Skipf("this file system enforces no project quotas: make test-v2 (%v)", err)
	}
	const mib = 1 << 20
	for range 2 { // as after a kill
		if err := errors.Join(Limit(dir, 4*mib), Limit(other, 8*mib)); err != nil {
			t.Fatal(err)
		}
	}
	project, err := Project(dir)
	if err != nil || project == 0 {
		t.Fatal(project, err)
	}
	if theirs, err := Project(other); err != nil || theirs == project {
		t.Fatal(theirs, err)
	}
	below := filepath.Join(dir.Name(), "below", "it")
	folder(t, below)
	if err := write(t, filepath.Join(below, "one"), 3*mib); err != nil {
		t.Error(err)
	}
	if err := write(t, filepath.Join(dir.Name(), "two"), 2*mib); !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than the limit: %v", err)
	}
	if err := write(t, filepath.Join(other.Name(), "one"), 6*mib); err != nil {
		t.Errorf("another directory: %v", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir.Name(), &fs); err != nil || fs.Blocks*uint64(fs.Bsize) != 4*mib {
		t.Errorf("df says %d, %v", fs.Blocks*uint64(fs.Bsize), err)
	}
	if err := Limit(dir, 16*mib); err != nil {
		t.Fatal(err)
	}
	if err := write(t, filepath.Join(dir.Name(), "two"), 2*mib); err != nil {
		t.Errorf("after it was raised: %v", err)
	}
	if again, err := Project(dir); again != project || err != nil {
		t.Error(again, err)
	}
	if err := Limit(dir, mib); err != nil { // what is there stays
		t.Fatal(err)
	}
	if err := write(t, filepath.Join(dir.Name(), "three"), mib); err == nil {
		t.Error("a limit below what is there holds nothing up")
	}
	if err := Release(dir); err != nil {
		t.Fatal(err)
	}
	if err := write(t, filepath.Join(dir.Name(), "three"), 20*mib); err != nil {
		t.Errorf("after it was released: %v", err)
	}
}
