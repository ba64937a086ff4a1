package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/oci"
)

// Control gives commands to the conmon of a container.
type Control struct {
	Bundle oci.Bundle
	Exited <-chan struct{} // closed once the container's end is known

	mu sync.Mutex // one command at a time
}

// Resize tells conmon the size of the terminal.
func (c *Control) Resize(ctx context.Context, rows, cols uint16) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	fifo, err := c.open(ctx)
	if err != nil {
		return err
	}
	if _, err = unix.Write(fifo, fmt.Appendf(nil, "1 %d %d\n", rows, cols)); err != nil {
		err = c.explain(ctx, fmt.Errorf("write to the control FIFO of conmon: %w", err))
	}
	return errors.Join(err, unix.Close(fifo))
}

// open opens conmon's control FIFO once conmon has read the previous command: if it read
// two at once, it would carry out the first one twice. The kernel offers no event for a FIFO
// becoming empty, and it nearly always is empty.
func (c *Control) open(ctx context.Context) (int, error) {
	fd, err := unix.Open(c.Bundle.ControlFIFO(), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, c.explain(ctx, fmt.Errorf("open the control FIFO of conmon: %w", err))
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
		case <-c.Exited:
			return -1, errors.Join(crierror.Precondition("the container has exited"), unix.Close(fd))
		case <-ctx.Done():
			return -1, errors.Join(ctx.Err(), unix.Close(fd))
		}
	}
}

// explain says why conmon cannot be told anything. A FIFO without a reader belongs to a
// container whose exit we are about to see, so the error waits until we have seen it.
func (c *Control) explain(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.EPIPE): // no reader
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH): // no such file, no such process
	default:
		return err
	}
	select {
	case <-c.Exited:
		return crierror.Precondition("the container has exited")
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
