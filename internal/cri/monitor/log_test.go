package monitor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/oci"
)

// conmon closes its end of the FIFO a moment before we notice that it has exited: a rotation in
// between used to fail with "no such device or address".
func TestReopenWhileTheEndIsOnItsWay(t *testing.T) {
	dir := t.TempDir()
	exited := make(chan struct{})
	c := &Control{Bundle: oci.Bundle{Dir: dir}, Exited: exited}
	if err := unix.Mkfifo(c.Bundle.ControlFIFO(), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Bundle.Log = filepath.Join(dir, "0.log")
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.ReopenLog(short); !errors.Is(err, unix.ENXIO) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is not known: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { close(exited) })
	if err := c.ReopenLog(t.Context()); err == nil || err.Error() != "the container has exited" {
		t.Errorf("once it is known: %v", err)
	}
	if err := c.Resize(t.Context(), 24, 80); err == nil || err.Error() != "the container has exited" {
		t.Errorf("the size of its terminal: %v", err)
	}
}

// A conmon that has exited, and has not been reaped, has no files open: its log used to be taken
// for somebody else's.
func TestReopenOfTheLogOfAConmonThatHasEnded(t *testing.T) {
	dir := t.TempDir()
	exited := make(chan struct{})
	c := &Control{Bundle: oci.Bundle{Dir: dir}, Exited: exited}
	c.Bundle.Log = filepath.Join(dir, "0.log")
	conmon, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := conmon.Wait(); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.Waitid(unix.P_PID, conmon.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{c.Bundle.Log: "a line", c.Bundle.MonitorPIDFile(): strconv.Itoa(conmon.Pid)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.ReopenLog(short); !errors.Is(err, unix.ESRCH) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while its end is not known: %v", err)
	}
	close(exited)
	if err := c.ReopenLog(t.Context()); err == nil || err.Error() != "the container has exited" {
		t.Errorf("once it is known: %v", err)
	}
}
