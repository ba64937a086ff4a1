package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/oci"
)

// reopenCommand tells conmon to open LOG.tmp and to rename it to LOG. Whatever is at LOG then is
// lost, so the command is never sent twice, and never while conmon's own file has that name.
const reopenCommand = "2 0 0\n"

// ReopenLog has conmon write to a new file at the log's path.
func (c *Control) ReopenLog(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, err := os.Stat(c.Bundle.Log)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	default:
		mine, err := c.writesTo(before)
		if err != nil {
			return c.explain(ctx, err)
		}
		if mine {
			return nil
		}
		if before.Size() > 0 {
			return crierror.Precondition("%s is not the container's own log file and is not empty; move it away first", c.Bundle.Log)
		}
	}
	moved, err := watchFolder(filepath.Dir(c.Bundle.Log))
	if err != nil {
		return err
	}
	defer moved.close()
	fifo, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fifo) }()
	// If conmon cannot create the file, on a full disk for example, it exits, and the container
	// with it. So the file is created for it beforehand.
	tmp := c.Bundle.Log + ".tmp"
	if err := makeLog(tmp); err != nil {
		return err
	}
	if err := c.swapLog(ctx, fifo, moved, before); err != nil {
		if rerr := os.Remove(tmp); !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return err
	}
	return nil
}

// makeLog makes an empty log, replacing whatever has its name.
func makeLog(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// swapLog sends the command and waits until a different file has the log's name.
func (c *Control) swapLog(ctx context.Context, fifo int, moved *folderWatch, before os.FileInfo) error {
	if _, err := unix.Write(fifo, []byte(reopenCommand)); err != nil {
		return c.explain(ctx, fmt.Errorf("write to the control FIFO of conmon: %w", err))
	}
	done, ended := ctx.Done(), false
	for {
		now, err := os.Stat(c.Bundle.Log)
		if err == nil && (before == nil || !os.SameFile(before, now)) {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if ended {
			return crierror.Precondition("the container has exited")
		}
		select {
		case <-moved.events:
		case <-c.Exited:
			ended = true // conmon may have done it before it exited: look once more
		case <-done:
			if c.takeBack() {
				return ctx.Err()
			}
			done = nil // conmon has taken the command: all we can do is wait
		}
	}
}

// takeBack removes a command that conmon has not read yet. A caller that gives up gives the log
// its name back, and conmon must not replace it after that.
func (c *Control) takeBack() bool {
	fd, err := unix.Open(c.Bundle.ControlFIFO(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Read(fd, make([]byte, len(reopenCommand)))
	return err == nil && n == len(reopenCommand)
}

// writesTo reports whether conmon has the file open. If conmon has exited, it returns ESRCH,
// whether or not we have noticed the exit yet.
func (c *Control) writesTo(file os.FileInfo) (bool, error) {
	pid, err := oci.ReadPID(c.Bundle.MonitorPIDFile())
	if err != nil {
		return false, err
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, fd := range fds {
		if open, err := os.Stat(filepath.Join(dir, fd.Name())); err == nil && os.SameFile(open, file) {
			return true, nil
		}
	}
	if fds, err = os.ReadDir(dir); err == nil && len(fds) == 0 {
		err = fmt.Errorf("files of conmon: %w", unix.ESRCH)
	}
	return false, err
}
