package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotRunning means that no daemon holds the instance.
var ErrNotRunning = errors.New("wherry is not running")

// instanceLock keeps a second daemon off the same data dir. It holds the PID of its owner, and the
// kernel releases it when the owner ends, however it ends.
type instanceLock struct{ f *os.File }

func lockPath(dataDir string) string { return filepath.Join(dataDir, "lock") }

func lockInstance(dataDir string) (*instanceLock, error) {
	f, err := os.OpenFile(lockPath(dataDir), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := takeLock(f); err != nil {
		pid := readPID(f)
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("wherry is already running with --data-dir %s (pid %d); stop it with `wherry down --data-dir %s`, or use another data dir", dataDir, pid, dataDir)
		}
		return nil, fmt.Errorf("lock %s: %w", lockPath(dataDir), err)
	}
	if err := writePID(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &instanceLock{f}, nil
}

// takeLock takes the lock for an owner. A process that only asks whether there is an owner
// (RunningPID) holds it shared for a moment, and is not one.
func takeLock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
			return err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // so that asking does not get in another owner's way
	}
}

// writePID overwrites what is there: on a full disk, a file that was emptied first gets no room.
func writePID(f *os.File) error {
	line := strconv.Itoa(os.Getpid()) + "\n"
	if _, err := f.WriteAt([]byte(line), 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(line)))
}

func readPID(f *os.File) int {
	buf := make([]byte, 16)
	n, _ := f.ReadAt(buf, 0) // a short file returns io.EOF
	line, _, _ := strings.Cut(string(buf[:n]), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return 0
	}
	return pid
}

// release gives the instance up. Closing alone is not enough: a child that is being forked anywhere
// in this process has the file open until it executes its program.
func (l *instanceLock) release() error {
	return errors.Join(unix.Flock(int(l.f.Fd()), unix.LOCK_UN), l.f.Close())
}

// RunningPID returns the PID of the daemon of the data dir, or ErrNotRunning.
func RunningPID(dataDir string) (int, error) {
	f, err := os.OpenFile(lockPath(dataDir), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, ErrNotRunning
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	return ownerOf(f)
}

// ownerOf returns the PID of the process that holds the lock's file, or ErrNotRunning.
func ownerOf(f *os.File) (int, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	switch {
	case err == nil:
		return 0, errors.Join(ErrNotRunning, unix.Flock(int(f.Fd()), unix.LOCK_UN)) // see release
	case !errors.Is(err, unix.EWOULDBLOCK): // the PID in it may be an old one's
		return 0, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if pid := readPID(f); pid > 0 {
		return pid, nil
	}
	return 0, fmt.Errorf("%s is locked, but does not say by which process", f.Name())
}
