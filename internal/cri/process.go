package cri

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// processStart returns when a process started (proc(5), stat field 22). Together with the PID,
// this identifies the process for ever. The error is os.ErrNotExist if the process is gone.
func processStart(pid int) (uint64, error) {
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
		return 0, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// process is a handle (pidfd) to a process, which cannot be mistaken for another one.
type process struct{ f *os.File }

// openProcess opens the process with that PID if check, called once it is open, confirms that it
// is the right one. It returns nil if that process is gone.
func openProcess(pid int, check func() (bool, error)) (*process, error) {
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
	return &process{os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid))}, nil
}

// openStarted opens a process by PID and start time.
func openStarted(pid int, start uint64) (*process, error) {
	return openProcess(pid, func() (bool, error) {
		have, err := processStart(pid)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return have == start, err
	})
}

// openMonitor opens the conmon of a container: its command line names the container.
func openMonitor(pid int, id string) (*process, error) {
	return openProcess(pid, func() (bool, error) {
		doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return false, nil
		}
		return bytes.Contains(doc, []byte("\x00"+id+"\x00")), err
	})
}

// wait returns nil when the process has exited, or an error if close was called. No thread is
// blocked meanwhile: the Go runtime's poller waits.
func (p *process) wait() error {
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

// signal sends a signal. It is no error if the process has exited.
func (p *process) signal(sig unix.Signal) error {
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

func (p *process) close() error { return p.f.Close() }
