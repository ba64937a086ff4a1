package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/oci"
)

// ReopenContainerLog has conmon write to a new file at the log's path, after a rotation has moved
// the old one away. Once it returns, every later line goes to the new file. If it fails, conmon
// still writes to the moved file, which can get its name back. Without a rotation there is
// nothing to do.
func (s *Server) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if !c.running() {
		return nil, precondition("container %s is not running", c.id)
	}
	if c.rec.Log == "" {
		return nil, precondition("container %s has no log", c.id)
	}
	if err := c.reopenLog(ctx); err != nil {
		return nil, fmt.Errorf("reopen log of container %s: %w", c.id, err)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// reopenCommand tells conmon to open LOG.tmp and to rename it to LOG. Whatever is at LOG then is
// lost, so the command is never sent twice, and never while conmon's own file has that name.
const reopenCommand = "2 0 0\n"

func (c *container) reopenLog(ctx context.Context) error {
	c.ctl.Lock()
	defer c.ctl.Unlock()
	before, err := os.Stat(c.rec.Log)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	default:
		mine, err := c.writesTo(before)
		if err != nil {
			return c.controlError(ctx, err)
		}
		if mine {
			return nil
		}
		if before.Size() > 0 {
			return precondition("%s is not the container's own file, and not empty; move it away first", c.rec.Log)
		}
	}
	moved, err := watchFolder(filepath.Dir(c.rec.Log))
	if err != nil {
		return err
	}
	defer moved.close()
	fifo, err := c.openControl(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fifo) }()
	// If conmon cannot create the file, on a full disk for example, it exits, and the container
	// with it. So the file is created for it beforehand.
	tmp := c.rec.Log + ".tmp"
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

// checkLog refuses a log that conmon would write somewhere else: pods that collect logs have a
// hostPath to all of them, and may have put a link or a pipe there.
func checkLog(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode().IsRegular() {
		return nil
	}
	return errors.Join(err, precondition("the container's log %s is not a regular file; remove it", path))
}

// swapLog sends the command and waits until a different file has the log's name.
func (c *container) swapLog(ctx context.Context, fifo int, moved *folderWatch, before os.FileInfo) error {
	if _, err := unix.Write(fifo, []byte(reopenCommand)); err != nil {
		return c.controlError(ctx, fmt.Errorf("write to the control FIFO of conmon: %w", err))
	}
	done, ended := ctx.Done(), false
	for {
		now, err := os.Stat(c.rec.Log)
		if err == nil && (before == nil || !os.SameFile(before, now)) {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if ended {
			return precondition("the container has ended")
		}
		select {
		case <-moved.events:
		case <-c.exited:
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
func (c *container) takeBack() bool {
	fd, err := unix.Open(c.bundle.ControlFIFO(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Read(fd, make([]byte, len(reopenCommand)))
	return err == nil && n == len(reopenCommand)
}

// writesTo reports whether conmon has the file open. If conmon has exited, it returns ESRCH,
// whether or not we have noticed the exit yet.
func (c *container) writesTo(file os.FileInfo) (bool, error) {
	pid, err := oci.ReadPID(c.bundle.MonitorPIDFile())
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

// resize tells conmon the size of the terminal.
func (c *container) resize(ctx context.Context, rows, cols uint16) error {
	c.ctl.Lock()
	defer c.ctl.Unlock()
	fifo, err := c.openControl(ctx)
	if err != nil {
		return err
	}
	if _, err = unix.Write(fifo, fmt.Appendf(nil, "1 %d %d\n", rows, cols)); err != nil {
		err = c.controlError(ctx, fmt.Errorf("write to the control FIFO of conmon: %w", err))
	}
	return errors.Join(err, unix.Close(fifo))
}

// openControl opens conmon's control FIFO once conmon has read the previous command: if it read
// two at once, it would carry out the first one twice. The kernel offers no event for a FIFO
// becoming empty, and it nearly always is empty.
func (c *container) openControl(ctx context.Context) (int, error) {
	fd, err := unix.Open(c.bundle.ControlFIFO(), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, c.controlError(ctx, fmt.Errorf("open the control FIFO of conmon: %w", err))
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		n, err := unix.IoctlGetInt(fd, unix.TIOCINQ) // FIONREAD
		if err == nil && n == 0 {
			return fd, nil
		}
		if err != nil {
			return -1, errors.Join(err, unix.Close(fd))
		}
		select {
		case <-time.After(pause):
		case <-c.exited:
			return -1, errors.Join(precondition("the container has ended"), unix.Close(fd))
		case <-ctx.Done():
			return -1, errors.Join(ctx.Err(), unix.Close(fd))
		}
	}
}

// controlError explains why conmon cannot be told anything. A FIFO without a reader belongs to a
// container whose exit we are about to see, so the error waits until we have seen it.
func (c *container) controlError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.EPIPE): // no reader
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH): // no such file, no such process
	default:
		return err
	}
	select {
	case <-c.exited:
		return precondition("the container has ended")
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
}

// folderWatch reports when a file is renamed into a folder. Unlike fsnotify, it does not wake up
// for every line written there.
type folderWatch struct {
	f      *os.File
	events chan struct{} // capacity 1
	ended  chan struct{}
}

func watchFolder(dir string) (*folderWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), unix.Close(fd))
	}
	w := &folderWatch{f: os.NewFile(uintptr(fd), "inotify"), events: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w, nil
}

func (w *folderWatch) run() {
	defer close(w.ended)
	buf := make([]byte, 4096)
	for {
		if _, err := w.f.Read(buf); err != nil {
			return // closed
		}
		select {
		case w.events <- struct{}{}:
		default:
		}
	}
}

func (w *folderWatch) close() {
	_ = w.f.Close()
	<-w.ended
}
