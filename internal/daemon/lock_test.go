package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/test/disks"
)

// A child that is being forked while the node restarts has the lock's file open until it executes
// its program: the new process must not take that for another node that is already running.
func TestReleasedLockIsFreeWhileAChildIsForked(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockInstance(dir)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(lock.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := lock.release(); err != nil {
		t.Fatal(err)
	}
	if pid, err := RunningPID(dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("%d runs, %v", pid, err)
	}
}

// A process that asked whether a node runs, at the very moment it started, used to be taken for
// another node that is already running.
func TestWhoAsksForTheLockIsNoOwner(t *testing.T) {
	dir := t.TempDir()
	asks, err := os.OpenFile(lockPath(dir), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(asks.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	type result struct {
		lock *instanceLock
		err  error
	}
	done := make(chan result, 1)
	go func() {
		lock, err := lockInstance(dir)
		done <- result{lock, err}
	}()
	select {
	case r := <-done:
		t.Fatalf("while somebody asks: %v, %v", r.lock, r.err)
	case <-time.After(10 * time.Millisecond):
	}
	if err := asks.Close(); err != nil {
		t.Fatal(err)
	}
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if _, err := lockInstance(dir); err == nil {
		t.Error("two have the lock")
	}
	if err := r.lock.release(); err != nil {
		t.Error(err)
	}
}

// `wherry down` takes a node's lock on a full disk: the PID that was there is overwritten, because
// a file that is emptied first may get no room again.
func TestLockIsTakenOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	disks.Tmpfs(t, dir, "size=64k")
	if err := os.WriteFile(lockPath(dir), []byte("12345678901\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := disks.Fill(filepath.Join(dir, "fill")); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "fill"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // whatever is freed is taken at once
		defer close(stopped)
		for page := make([]byte, 4096); ; {
			select {
			case <-stop:
				return
			default:
				_, _ = f.Write(page) // there is room, or not
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	for range 2000 {
		lock, err := lockInstance(dir)
		if err != nil {
			t.Fatal(err)
		}
		if pid := readPID(lock.f); pid != os.Getpid() {
			t.Errorf("it names %d", pid)
		}
		if err := lock.release(); err != nil {
			t.Fatal(err)
		}
	}
}

// Any failure to ask for a lock used to be taken for a process that holds it: for the one that the
// file names, which may be long gone, or for an API server.
func TestLockThatFailsHasNoOwner(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	closed, err := os.Create(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil { // what is closed cannot be locked
		t.Fatal(err)
	}
	if pid, err := ownerOf(closed); pid != 0 || !errors.Is(err, unix.EBADF) || errors.Is(err, ErrNotRunning) || strings.Contains(err.Error(), "is locked") {
		t.Errorf("owner %d, %v", pid, err)
	}
	if err := refuseLocked(closed, "data"); !errors.Is(err, unix.EBADF) || strings.Contains(err.Error(), "API server") {
		t.Errorf("API server: %v", err)
	}
	if err := takeLock(f); err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(f.Close(), other.Close()) }()
	if err := refuseLocked(other, "data"); !errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), "an API server is running on data") {
		t.Errorf("while it is held: %v", err)
	}
}
