// Package ownlog keeps the log of this process from filling the disk. The log is a file to which
// descriptors of the process lead, standard output and error, so it also has what the Go runtime
// prints about a panic, and what libraries print. A file that has grown too large is renamed, and
// the descriptors lead to a new one; nothing that is written is lost or has to wait. If the disk
// is full, only the line is lost: code that writes a log does not check for errors.
package ownlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Log is the log of a process.
type Log struct {
	Path string
	// Size is the size in bytes at which a file is renamed.
	Size int64
	// Keep is how many renamed files stay: PATH.1 is the newest.
	Keep int
	// FDs are the descriptors that lead to the file.
	FDs []int
}

// Open opens the file for a process that will write to it.
func Open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
}

// IsOwn reports whether all descriptors lead to the file.
func (l Log) IsOwn() bool {
	var file unix.Stat_t
	if unix.Lstat(l.Path, &file) != nil {
		return false
	}
	for _, fd := range l.FDs {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Dev != file.Dev || st.Ino != file.Ino {
			return false
		}
	}
	return true
}

// Run renames the file whenever it has grown too large, until ctx ends. It reports an error once,
// until a different one occurs.
func (l Log) Run(ctx context.Context, report func(error)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", l.Path, err)
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	stop := context.AfterFunc(ctx, func() { _ = changes.Close() })
	defer func() {
		if stop() {
			_ = changes.Close()
		}
	}()
	told, buf := "", make([]byte, 4096)
	for {
		// Watch the file that is written to now: the old one has no further events.
		if _, err := unix.InotifyAddWatch(fd, l.Path, unix.IN_MODIFY); err != nil && ctx.Err() == nil {
			return fmt.Errorf("watch %s: %w", l.Path, err)
		}
		for rotated := false; !rotated; {
			if rotated, err = l.rotate(); err != nil && err.Error() != told {
				told = err.Error()
				report(err)
			}
			if rotated {
				break
			}
			if _, err := changes.Read(buf); err != nil {
				return nil // closed because ctx ended
			}
		}
	}
}

// rotate renames the file if it is too large, and reports whether it did.
func (l Log) rotate() (bool, error) {
	info, err := os.Lstat(l.Path)
	if err != nil || info.Size() < l.Size {
		return false, err
	}
	// Remove the oldest first, because the new file may need its space.
	if err := os.Remove(l.name(l.Keep)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for i := l.Keep - 1; i >= 0; i-- {
		if err := os.Rename(l.name(i), l.name(i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	next, err := Open(l.Path)
	if err != nil { // the descriptors still lead to the renamed file: give it its name back
		return false, errors.Join(err, os.Rename(l.name(1), l.Path))
	}
	for _, fd := range l.FDs {
		err = errors.Join(err, unix.Dup3(int(next.Fd()), fd, 0))
	}
	return true, errors.Join(err, next.Close())
}

func (l Log) name(i int) string {
	if i == 0 {
		return l.Path
	}
	return fmt.Sprintf("%s.%d", l.Path, i)
}
