package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Start lets the created container run. It returns when the container's first process has
// become its program, or has ended instead: until then it is the runtime still, which
// an exec, a probe or a signal would meet.
func (r *Runtime) Start(ctx context.Context, b Bundle) error {
	held, err := r.openHeld(b)
	if err != nil {
		return err
	}
	if err := r.release(ctx, b); err != nil {
		return errors.Join(err, held.close())
	}
	return errors.Join(held.wait(ctx), held.close())
}

// release lets the first process go on to its program.
func (r *Runtime) release(ctx context.Context, b Bundle) error {
	if r.crun && !b.Hooked {
		if err := r.releaseFIFO(b.ID); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return r.run(ctx, "start", b.ID)
}

// releaseFIFO does what `crun start` does for a container without hooks: the
// container's first process waits for a byte in a FIFO, whose reading end it holds.
// That saves the 4 ms of an exec. The FIFO is removed last, so that as long as it
// exists the byte may not have been written.
func (r *Runtime) releaseFIFO(id string) error {
	path := r.fifo(id)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) {
		return errors.New("the container's process has ended before it was started")
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	_, err = unix.Write(fd, []byte{'1'})
	removed := os.Remove(path)
	if errors.Is(removed, fs.ErrNotExist) {
		removed = nil // the container ran, ended and was cleaned up meanwhile
	}
	return errors.Join(err, unix.Close(fd), removed)
}

func (r *Runtime) fifo(id string) string { return filepath.Join(r.State, id, "exec.fifo") }

// Waiting tells whether a created container has not been started yet; only crun's
// way shows that.
func (r *Runtime) Waiting(id string) bool {
	_, err := os.Stat(r.fifo(id))
	return err == nil
}

// held is a FIFO that the container's first process has open for writing, and that the
// kernel closes when that process becomes another program, or ends. So its reader is told
// of that by the end of the file. nil where there is none.
//
//   - crun holds the log that it is told to write open until then, and tells what it has
//     to say on its standard error all the same.
//   - runc's first process waits for a reader of exec.fifo, writes a byte and holds it
//     open until then; runc from 1.1.12 on closes it by itself, just before.
//   - Of other runtimes nothing is known: Start returns when their start does.
type held struct{ fd int }

// execWait bounds the wait for the program. One that takes longer is on a disk that does
// not answer; the container has been started, and can be stopped.
const execWait = time.Minute

func (b Bundle) heldFIFO() string { return filepath.Join(b.Dir, "held") }

func (r *Runtime) makeHeldFIFO(b Bundle) error {
	if !r.crun {
		return nil
	}
	if err := unix.Mkfifo(b.heldFIFO(), 0o600); err != nil {
		return fmt.Errorf("make %s: %w", b.heldFIFO(), err)
	}
	return nil
}

// heldArgs are for the command create alone.
func (r *Runtime) heldArgs(b Bundle) []string {
	if !r.crun {
		return nil
	}
	return []string{"--log=" + b.heldFIFO()}
}

// openHeld takes hold of the FIFO without reading it: a reader would let runc's process go,
// and `runc start` removes the name.
func (r *Runtime) openHeld(b Bundle) (*held, error) {
	path := r.fifo(b.ID)
	if r.crun {
		path = b.heldFIFO()
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &held{fd}, nil
}

// wait returns when nobody has the FIFO open for writing any more. That the wait was cut
// short is no error: the container has been started.
func (h *held) wait(ctx context.Context) error {
	if h == nil {
		return nil
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", h.fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("wait for the container's program: %w", err)
	}
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithTimeout(ctx, execWait)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	if _, err := io.Copy(io.Discard, f); err != nil && ctx.Err() == nil {
		return fmt.Errorf("wait for the container's program: %w", err)
	}
	return nil
}

func (h *held) close() error {
	if h == nil {
		return nil
	}
	return unix.Close(h.fd)
}
