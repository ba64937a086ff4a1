package daemon

import (
	"bytes"
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
	if err := whenLetGo(f, endingPatience, func() error { return takeLock(f) }); err != nil {
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

// endingPatience is how long an owner that was killed has to let the lock go: first the kernel takes its
// memory apart, and a child that it was forking may have the file open a little longer.
const endingPatience = 10 * time.Second

// whenLetGo asks for the lock of a file until it gets an answer other than that somebody holds it. It does
// not wait for an owner that lives. It has to ask again and again: flock(2) has no time limit, and a lock can
// outlive its owner's process in a child.
func whenLetGo(f *os.File, patience time.Duration, ask func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := ask()
		if !errors.Is(err, unix.EWOULDBLOCK) || !ending(readPID(f)) || time.Now().After(deadline) {
			return err
		}
	}
}

// ending reports whether a process was killed, is ending, or has ended. PID 0 is nobody's.
func ending(pid int) bool {
	const exiting = 0x4 // PF_EXITING: proc_pid_stat(5), flags
	if pid <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	// After the program's name in brackets, which may hold anything: state, five numbers, flags.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return strings.Contains("ZXx", fields[0]) || err == nil && flags&exiting != 0 || killed(pid)
}

// killed reports whether a process has been sent SIGKILL, and has not taken note of it yet.
func killed(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false // ending looks again
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
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
	err := whenLetGo(f, endingPatience, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) })
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
