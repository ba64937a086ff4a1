package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wherry.dev/internal/failpoint"
)

// Start starts the created container. It returns when the container's first process has become
// its program, or has exited instead. Until then the process is still the runtime, and that is
// what an exec, a probe or a signal would meet.
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

// release lets the first process continue to its program.
func (r *Runtime) release(ctx context.Context, b Bundle) error {
	if r.crun && !b.Hooked {
		if err := r.releaseFIFO(b); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return r.run(ctx, "start", b.ID)
}

// releaseFIFO does what `crun start` does for a container without hooks: the container's first
// process waits for a byte in a FIFO whose reading end it holds. This saves the 4 ms of an exec.
// The FIFO is removed last, so while it exists the byte may not have been written. If nobody
// holds it, either a start wrote the byte and was killed before it removed the FIFO, or the
// process has exited: then its exit says why.
func (r *Runtime) releaseFIFO(b Bundle) error {
	path := r.fifo(b.ID)
	goOn, err := holdStill(b)
	if err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENXIO):
		err = nil
	case err != nil:
		return errors.Join(fmt.Errorf("open %s: %w", path, err), goOn())
	default:
		failpoint.At("start-opened")
		if _, err = unix.Write(fd, []byte{'1'}); errors.Is(err, unix.EPIPE) {
			err = nil // the reader is gone
		}
		failpoint.At("start-written")
		err = errors.Join(err, unix.Close(fd))
	}
	removed := os.Remove(path)
	if errors.Is(removed, fs.ErrNotExist) {
		removed = nil // the container has run, exited and been cleaned up by now
	}
	return errors.Join(err, goOn(), removed)
}

// holdStill sends SIGSTOP to the container's first process until goOn is called, unless the
// process sleeps. If an earlier start was killed after it had opened the FIFO and before it wrote
// to it, crun keeps reading the end of the file. Between the next start's open and its byte there
// is nothing to read, which crun would take for an error.
func holdStill(b Bundle) (goOn func() error, err error) {
	nothing := func() error { return nil }
	pid, err := ReadPID(b.PIDFile())
	if err != nil || sleeps(pid) {
		return nothing, nil //nolint:nilerr // a missing process cannot be stopped; the FIFO will show that it is gone
	}
	signal := func(sig unix.Signal) error {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal the container's process %d: %w", pid, err)
		}
		return nil
	}
	if err := signal(unix.SIGSTOP); err != nil {
		return nothing, err
	}
	// Only the parent is notified when it has stopped, so poll: it takes microseconds.
	for deadline := time.Now().Add(time.Second); state(pid) == "R" && time.Now().Before(deadline); {
		time.Sleep(50 * time.Microsecond)
	}
	return func() error { return signal(unix.SIGCONT) }, nil
}

func sleeps(pid int) bool { return state(pid) == "S" }

// state returns the kernel's letter for the process's state, or "" if there is no such process.
func state(pid int) string {
	doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(doc), ") ") // crun's name contains no ") "
	letter, _, _ := strings.Cut(rest, " ")
	return letter
}

func (r *Runtime) fifo(id string) string { return filepath.Join(r.State, id, "exec.fifo") }

// Waiting reports whether a created container has not been started yet. This works for crun only.
func (r *Runtime) Waiting(id string) bool {
	_, err := os.Stat(r.fifo(id))
	return err == nil
}

// held detects when the container's first process becomes another program, or exits.
//
//   - crun holds its log file open until then (while it creates the container, it also writes
//     its messages to standard error). The log is a FIFO, which the kernel closes at the exec,
//     so its reader sees the end of the file; what is in it is the reason why there was no
//     exec.
//   - For other runtimes we look at the program that the process runs. runc's process waits for
//     a reader of its exec.fifo, writes a byte and closes it just before: we look from then on.
type held struct {
	fd   int // of the FIFO; -1 if there is none
	exe  string
	runs os.FileInfo // what exe was before the start; nil if the process had exited by then
	own  bool        // the FIFO alone is enough
}

// execWait bounds the wait for the program. A program that takes longer is on a disk that does
// not respond, or is the runtime's own file, which somebody put into the container. The container
// has been started then, and can be stopped.
const execWait = time.Minute

func (b Bundle) heldFIFO() string { return filepath.Join(b.Dir, "held") }

func (r *Runtime) makeHeldFIFO(b Bundle) error {
	if !r.crun {
		return nil
	}
	if err := unix.Mkfifo(b.heldFIFO(), 0o600); err != nil {
		return fmt.Errorf("create %s: %w", b.heldFIFO(), err)
	}
	return nil
}

// heldArgs returns the arguments that only the create command gets.
func (r *Runtime) heldArgs(b Bundle) []string {
	if !r.crun {
		return nil
	}
	return []string{"--log=" + b.heldFIFO()}
}

// openHeld opens the FIFO without reading it: a reader would let runc's process continue, and
// `runc start` removes the name.
func (r *Runtime) openHeld(b Bundle) (*held, error) {
	h := &held{fd: -1, own: r.crun}
	path := r.fifo(b.ID)
	if r.crun {
		path = b.heldFIFO()
	}
	if err := h.look(b); err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist): // a runtime of another kind, or made by an older Wherry
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	default:
		h.fd = fd
	}
	return h, nil
}

// look records what the container's first process runs now. If it is gone, there is nothing to
// wait for; the start will report that.
func (h *held) look(b Bundle) error {
	pid, err := ReadPID(b.PIDFile())
	if err == nil {
		h.exe = fmt.Sprintf("/proc/%d/exe", pid)
		h.runs, err = os.Stat(h.exe)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// wait returns when the first process has become another program, or has exited. It returns an
// error if the runtime said why the process exited. Giving up the wait is not an error: the
// container has been started.
func (h *held) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, execWait)
	defer cancel()
	said, err := h.awaitEnd(ctx)
	if err != nil {
		return fmt.Errorf("wait for the container's program: %w", err)
	}
	if !h.own {
		h.awaitProgram(ctx)
		return nil
	}
	if _, err := os.Stat(h.exe); err != nil && said != "" {
		return errors.New(cleanMessage(said))
	}
	return nil
}

// awaitEnd returns when nobody has the FIFO open for writing any more. said is the beginning of
// what was in it.
func (h *held) awaitEnd(ctx context.Context) (said string, err error) {
	if h.fd < 0 {
		return "", nil
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", h.fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	doc, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err == nil {
		_, err = io.Copy(io.Discard, f)
	}
	if err != nil && ctx.Err() == nil {
		return "", err
	}
	return string(doc), nil
}

// awaitProgram polls until the process runs something else. The kernel reports that only to a
// tracer, and it takes about a millisecond.
func (h *held) awaitProgram(ctx context.Context) {
	for pause := 50 * time.Microsecond; h.runs != nil && ctx.Err() == nil; pause = min(2*pause, 10*time.Millisecond) {
		if now, err := os.Stat(h.exe); err != nil || !os.SameFile(now, h.runs) {
			return
		}
		time.Sleep(pause)
	}
}

func (h *held) close() error {
	if h.fd < 0 {
		return nil
	}
	return unix.Close(h.fd)
}
