// Package disk looks at how much space a file system has, says how soon to look again, and keeps
// some of the space in reserve. It never waits for a disk: statfs answers from memory.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Room is what a file system has, in bytes and inodes. Free is what unprivileged programs may
// still use. Inodes is 0 for a file system that makes inodes as it needs them.
type Room struct {
	Free, Total        uint64
	FreeInodes, Inodes uint64
	Device             uint64 // of the file system; equal for two paths on the same one
}

// Same reports whether two paths are on one file system.
func Same(a, b string) (bool, error) {
	x, err := Look(a)
	if err != nil {
		return false, err
	}
	y, err := Look(b)
	return err == nil && x.Device == y.Device, err
}

// Look returns the room of the file system that path is on, or will be on once it exists.
func Look(path string) (Room, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.ENOENT) && filepath.Dir(path) != path {
			path = filepath.Dir(path)
			continue
		}
		if err != nil {
			return Room{}, fmt.Errorf("check free space on %s: %w", path, err)
		}
		var file unix.Stat_t
		if err := unix.Stat(path, &file); err != nil {
			return Room{}, fmt.Errorf("check free space on %s: %w", path, err)
		}
		size := uint64(st.Bsize)
		return Room{
			Free: st.Bavail * size, Total: st.Blocks * size,
			FreeInodes: st.Ffree, Inodes: st.Files, Device: file.Dev,
		}, nil
	}
}

const (
	// fastest is roughly what the programs of one machine can write to the page cache, in bytes
	// per second.
	fastest  = 4 << 30
	soonest  = 20 * time.Millisecond
	latest   = 10 * time.Second
	inodesAt = 1_000_000 // roughly how many they can make per second
)

// NextLook returns for how long nobody can use up all but half of floor, so that a watch costs
// nothing while there is plenty of space and still sees the end coming. floor is the free space
// at which the watcher acts.
func (r Room) NextLook(floor uint64) time.Duration {
	next := until(r.Free, floor/2, fastest)
	if r.Inodes > 0 {
		next = min(next, until(r.FreeInodes, 0, inodesAt))
	}
	return next
}

func until(free, floor, rate uint64) time.Duration {
	if free <= floor {
		return soonest
	}
	seconds := float64(free-floor) / float64(rate)
	if seconds >= latest.Seconds() {
		return latest
	}
	return max(soonest, time.Duration(seconds*float64(time.Second)))
}

// Reserve is a file that takes up space until somebody needs it.
type Reserve struct {
	Path string
	Size int64
}

// Hold makes the file, fully backed by blocks. It leaves an existing one alone. If there is no
// space for it, nothing stays.
func (r Reserve) Hold() error {
	if r.Held() {
		return nil
	}
	f, err := os.OpenFile(r.Path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("disk space reserve: %w", err)
	}
	err = errors.Join(Allocate(f, 0, 0, r.Size), f.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("disk space reserve %s: %w", r.Path, err), r.GiveBack())
	}
	return nil
}

// Allocate is fallocate(2). On a tmpfs a signal may interrupt it, such as SIGCHLD, or one by
// which this program's own threads wake each other.
func Allocate(f *os.File, mode uint32, off, size int64) error {
	for {
		if err := unix.Fallocate(int(f.Fd()), mode, off, size); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Held reports whether the whole reserve is there.
func (r Reserve) Held() bool {
	var st unix.Stat_t
	err := unix.Stat(r.Path, &st)
	return err == nil && st.Blocks*512 >= r.Size
}

// GiveBackTo shrinks the reserve to at most size.
func (r Reserve) GiveBackTo(size int64) error {
	var st unix.Stat_t
	err := unix.Stat(r.Path, &st)
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && st.Blocks*512 <= size:
		return nil
	case size <= 0:
		return r.GiveBack()
	case err == nil:
		err = os.Truncate(r.Path, size)
	}
	if err != nil {
		return fmt.Errorf("disk space reserve: %w", err)
	}
	return nil
}

// GiveBackNow is GiveBack for a caller that needs the space at once: some file systems hand out
// freed space only after the change is on disk.
func (r Reserve) GiveBackNow() error {
	f, err := os.OpenFile(r.Path, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("disk space reserve: %w", err)
	}
	return r.GiveBack()
}

// GiveBack removes the file. It is not an error if there is none.
func (r Reserve) GiveBack() error {
	if err := os.Remove(r.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("disk space reserve: %w", err)
	}
	return nil
}
