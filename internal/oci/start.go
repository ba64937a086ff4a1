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
		if err := r.releaseFIFO(b); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return r.run(ctx, "start", b.ID)
}

// releaseFIFO does what `crun start` does for a container without hooks: the
// container's first process waits for a byte in a FIFO, whose reading end it holds.
// That saves the 4 ms of an exec. The FIFO is removed last, so that as long as it
// exists the byte may not have been written. That nobody holds it says that it was, by a
// start that was killed before it removed the FIFO, or that the process has ended: then its
// exit says why.
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
			err = nil // nobody holds it any more
		}
		failpoint.At("start-written")
		err = errors.Join(err, unix.Close(fd))
	}
	removed := os.Remove(path)
	if errors.Is(removed, fs.ErrNotExist) {
		removed = nil // the container ran, ended and was cleaned up meanwhile
	}
	return errors.Join(err, goOn(), removed)
}

// holdStill stops the container's first process until goOn is called, unless it sleeps. After a
// start that was killed when it had opened the FIFO, and not yet written to it, crun reads the
// end of the file again and again; between the next one's opening and its byte there is nothing
// to be read, and crun takes that for an error.
func holdStill(b Bundle) (goOn func() error, err error) {
	nothing := func() error { return nil }
	pid, err := ReadPID(b.PIDFile())
	if err != nil || sleeps(pid) {
		return nothing, nil //nolint:nilerr // one that is not there cannot be stopped; the FIFO will tell
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
	// The kernel tells only its parent that it has stopped; it is a matter of microseconds.
	for deadline := time.Now().Add(time.Second); state(pid) == "R" && time.Now().Before(deadline); {
		time.Sleep(50 * time.Microsecond)
	}
	return func() error { return signal(unix.SIGCONT) }, nil
}

func sleeps(pid int) bool { return state(pid) == "S" }

// state is the letter that the kernel shows for it; "" when there is no such process.
func state(pid int) string {
	doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(doc), ") ") // crun's name has no such
	letter, _, _ := strings.Cut(rest, " ")
	return letter
}

func (r *Runtime) fifo(id string) string { return filepath.Join(r.State, id, "exec.fifo") }

// Waiting tells whether a created container has not been started yet; only crun's
// way shows that.
func (r *Runtime) Waiting(id string) bool {
	_, err := os.Stat(r.fifo(id))
	return err == nil
}

// held is what tells when the container's first process becomes another program, or ends.
//
//   - crun holds the log that it is told to write open until then (and tells what it has to
//     say on its standard error, too, as long as it creates). It is a FIFO, which the kernel
//     closes at the exec, so that its reader is told by the end of the file; what is in it is
//     why there was no exec.
//   - Of other runtimes' processes the program is looked at. runc's waits for a reader of its
//     exec.fifo, writes a byte and closes it a moment before: only from then on is looked.
type held struct {
	fd   int // of the FIFO; -1 where there is none
	exe  string
	runs os.FileInfo // what exe was before the start; nil when the process had ended by then
	own  bool        // the FIFO tells all
}

// execWait bounds the wait for the program. One that takes longer is on a disk that does
// not answer, or is the runtime's own file, which somebody put into the container; the
// container has been started, and can be stopped.
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

// look notes what the container's first process runs now. One that is gone has nothing to
// be waited for; the start will say so.
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

// wait returns when the first process is another program, or has ended; with an error when
// the runtime said why it did. That the wait was cut short is none: the container has been
// started.
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

// awaitEnd returns when nobody has the FIFO open for writing any more, with the beginning of
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

// awaitProgram looks until the process runs something else. The kernel tells nobody but its
// tracer of that; it is a matter of a millisecond.
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
