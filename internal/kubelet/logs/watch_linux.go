package logs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watch reports writes to logs, once for each request: a log that is written to all the time costs
// no more than its watcher wants to know.
type Watch struct {
	file *os.File

	mu    sync.Mutex
	paths map[int32]string // by watch descriptor
}

// NewWatch opens a watch; Close closes it.
func NewWatch() (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch logs: %w", err)
	}
	return &Watch{file: os.NewFile(uintptr(fd), "inotify"), paths: map[int32]string{}}, nil
}

// Close ends Run.
func (w *Watch) Close() error { return w.file.Close() }

// Next makes Run report the next write to the file. A missing file is not an error: the next look
// at it will find out.
func (w *Watch) Next(path string) error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	w.mu.Lock() // the event may come before its descriptor is known
	defer w.mu.Unlock()
	var watchErr error
	err = conn.Control(func(fd uintptr) {
		wd, err := unix.InotifyAddWatch(int(fd), path, unix.IN_MODIFY|unix.IN_ONESHOT)
		if err == nil {
			w.paths[int32(wd)] = path
		}
		watchErr = err
	})
	if err := errors.Join(err, watchErr); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("watch log %s: %w", path, err)
	}
	return nil
}

// Run calls written with the path of each log that was written to, until the context ends.
func (w *Watch) Run(ctx context.Context, written func(path string)) error {
	defer context.AfterFunc(ctx, func() { _ = w.Close() })()
	buf := make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := w.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch logs: %w", err)
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[4:])
			rest = rest[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(rest[12:]):]
			w.mu.Lock()
			path := w.paths[wd]
			if mask&unix.IN_IGNORED != 0 {
				delete(w.paths, wd)
			}
			w.mu.Unlock()
			if path != "" && mask&unix.IN_MODIFY != 0 {
				written(path)
			}
		}
	}
}
