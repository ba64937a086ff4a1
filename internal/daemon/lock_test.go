package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// TestHoldTheLock is the owner of other tests: a process that takes the lock, and passes it on to another
// one if it is told to. It ends with its standard input.
func TestHoldTheLock(t *testing.T) {
	dir := os.Getenv("HOLD_THE_LOCK")
	if dir == "" {
		t.Skip("this is the process that other tests start and kill; by itself it has nothing to test")
	}
	ballast := make([]byte, 64<<20) // which the kernel has to take apart
	for i := 0; i < len(ballast); i += 4096 {
		ballast[i] = 1
	}
	lock, err := lockInstance(dir)
	if err != nil {
		t.Fatal(err)
	}
	heir := exec.CommandContext(t.Context(), "true")
	if os.Getenv("PASS_IT_ON") != "" {
		heir = exec.CommandContext(t.Context(), "cat")
		heir.Stdin, heir.ExtraFiles = os.NewFile(3, "end"), []*os.File{lock.f}
	}
	if err := heir.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("locked")
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(ballast)
}

// owner runs a process that holds the lock. With end, another process holds it too, until end is closed.
func owner(t *testing.T, dir string, end *os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHoldTheLock$")
	cmd.Env = append(os.Environ(), "HOLD_THE_LOCK="+dir)
	if end != nil {
		cmd.Env = append(cmd.Env, "PASS_IT_ON=1")
		cmd.ExtraFiles = []*os.File{end}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			t.Fatalf("the owner ended: %v", lines.Err())
		}
		if lines.Text() == "locked" {
			return cmd
		}
	}
}

// The lock of a process that was just killed is held until the kernel has taken its memory apart: a new
// node took that for one that is already running.
func TestALockIsTakenOverFromAnOwnerThatWasKilled(t *testing.T) {
	dir := t.TempDir()
	for range 5 {
		cmd := owner(t, dir, nil)
		if _, err := lockInstance(dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("already running with --data-dir %s (pid %d)", dir, cmd.Process.Pid)) {
			t.Fatalf("of an owner that lives: %v", err)
		}
		if pid, err := RunningPID(dir); pid != cmd.Process.Pid {
			t.Errorf("%d runs, %v", pid, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := RunningPID(dir); !errors.Is(err, ErrNotRunning) {
			t.Errorf("after its end: %v", err)
		}
		lock, err := lockInstance(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.release(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
	}
}

// Another process has the file open longer than the owner, of which a zombie, or nothing, is left.
func TestALockIsWaitedForWhenItsOwnerHasEnded(t *testing.T) {
	for _, reaped := range []bool{false, true} {
		dir := t.TempDir()
		heirs, end, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := owner(t, dir, heirs)
		if err := errors.Join(heirs.Close(), cmd.Process.Kill()); err != nil {
			t.Fatal(err)
		}
		if reaped {
			_ = cmd.Wait() // it was killed
		}
		f, err := os.OpenFile(lockPath(dir), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := whenLetGo(f, 20*time.Millisecond, func() error { return takeLock(f) }); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("while another has it open: %v", err)
		}
		asks := 0
		err = whenLetGo(f, time.Minute, func() error {
			if asks++; asks == 3 { // the other process ends while somebody waits
				if err := end.Close(); err != nil {
					return err
				}
			}
			return takeLock(f)
		})
		if err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if !reaped {
			_ = cmd.Wait() // it was killed
		}
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
