// Package monitor finds, watches and kills processes, above all conmon, the monitor of a container. A
// process is known by a pidfd, so that it cannot be mistaken for another one.
package monitor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// StartTime returns when a process started (proc(5), stat field 22). Together with the PID,
// this identifies the process for ever. The error is os.ErrNotExist if the process is gone.
func StartTime(pid int) (uint64, error) {
	doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = os.ErrNotExist
		}
		return 0, err
	}
	// The command's name is in parentheses and may hold anything.
	_, rest, ok := strings.Cut(string(doc[bytes.LastIndexByte(doc, ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has an unknown format", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Process is a handle (pidfd) to a process, which cannot be mistaken for another one.
type Process struct {
	f   *os.File
	pid int
}

// open opens the process with that PID if check, called once it is open, confirms that it
// is the right one. It returns nil if that process is gone.
func open(pid int, check func() (bool, error)) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	ok, err := check()
	if err != nil || !ok {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Process{f: os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid)), pid: pid}, nil
}

// Open opens a process by PID and start time.
func Open(pid int, start uint64) (*Process, error) {
	return open(pid, func() (bool, error) {
		have, err := StartTime(pid)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return have == start, err
	})
}

// openConmon opens the conmon of a container: its command line names the container.
func openConmon(pid int, id string) (*Process, error) {
	return open(pid, func() (bool, error) {
		doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return false, nil
		}
		return bytes.Contains(doc, []byte("\x00"+id+"\x00")), err
	})
}

// Wait returns nil when the process has exited, or an error if Close was called. No thread is
// blocked meanwhile: the Go runtime's poller waits.
func (p *Process) Wait() error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var perr error
	err = raw.Read(func(fd uintptr) bool {
		var n int
		n, perr = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || (perr != nil && !errors.Is(perr, unix.EINTR))
	})
	return errors.Join(err, perr)
}

// Signal sends a signal. It is no error if the process has exited.
func (p *Process) Signal(sig unix.Signal) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(serr, unix.ESRCH) {
		return nil
	}
	return serr
}

// Close closes the handle, and ends Wait.
func (p *Process) Close() error { return p.f.Close() }

// WaitUntil waits until the process has exited, and closes the handle. It returns false if ctx ends
// first. The logger in ctx says whose process it is.
func (p *Process) WaitUntil(ctx context.Context) bool {
	stop := context.AfterFunc(ctx, func() { _ = p.Close() })
	err := p.Wait()
	if !stop() {
		return false
	}
	if cerr := p.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot wait for a process to exit", "pid", p.pid)
	}
	return err == nil
}
