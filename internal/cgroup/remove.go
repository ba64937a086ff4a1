package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// emptyWait bounds how long Remove and Kill wait for processes to disappear.
const emptyWait = 10 * time.Second

// BusyError means that a group still has processes.
type BusyError struct {
	Path string
	Pids []int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("cgroup %s still holds processes %v", e.Path, e.Pids)
}

// Procs lists the processes in the group and its descendants. A group that does not exist has
// none.
func Procs(path string) ([]int, error) {
	t, err := system()
	if err != nil {
		return nil, err
	}
	return t.Procs(path)
}

// Procs is the package's Procs on this tree.
func (t *Tree) Procs(path string) ([]int, error) {
	p, err := clean(path)
	if err != nil {
		return nil, err
	}
	return procsIn(filepath.Join(t.procsRoot(), p))
}

// procsIn reads the processes of dir and everything below it.
func procsIn(dir string) ([]int, error) {
	var all []int
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if gone(err) {
				return nil
			}
			return err
		}
		if !d.IsDir() {
			return nil
		}
		doc, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if err != nil {
			if gone(err) {
				return nil
			}
			return err
		}
		for f := range strings.FieldsSeq(string(doc)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
			all = append(all, pid)
		}
		return nil
	})
	return all, err
}

// Kill sends SIGKILL to every process in the group and below, and returns once they are gone. It
// refuses to kill its own process.
func Kill(path string) error {
	t, err := system()
	if err != nil {
		return err
	}
	return t.Kill(path)
}

// Kill is the package's Kill on this tree.
func (t *Tree) Kill(path string) error {
	p, err := clean(path)
	if err != nil {
		return err
	}
	dir := filepath.Join(t.procsRoot(), p)
	for deadline := time.Now().Add(emptyWait); ; {
		pids, err := procsIn(dir)
		if err != nil {
			return fmt.Errorf("kill cgroup %s: %w", p, err)
		}
		if len(pids) == 0 {
			return nil
		}
		if slices.Contains(pids, os.Getpid()) {
			return fmt.Errorf("kill cgroup %s: this process is in it", p)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return &BusyError{p, pids}
		}
		// One round may miss what a dying process has just forked: look again.
		if err := killRound(t.mode == V2, dir, pids, left); err != nil {
			return fmt.Errorf("kill cgroup %s: %w", p, err)
		}
	}
}

// killRound kills the pids and waits until they are gone. On v2 the kernel kills the whole
// subtree at once (Linux 5.14).
func killRound(v2 bool, dir string, pids []int, wait time.Duration) error {
	fds := openPids(pids)
	defer closeAll(fds)
	if v2 && write(dir, "cgroup.kill", "1") == nil {
		return waitExit(fds, wait)
	}
	for _, fd := range fds {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !gone(err) {
			return err
		}
	}
	return waitExit(fds, wait)
}

// openPids opens a pidfd for each process that is still alive. A pid that was reused between the
// listing and the open could belong to a process outside the group only if its first owner died
// in between; pids wrap far too slowly for that.
func openPids(pids []int) []int {
	var fds []int
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// waitExit returns when all of the processes have exited, or the time is up.
func waitExit(fds []int, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for _, fd := range fds {
		for {
			left := time.Until(deadline)
			if left <= 0 {
				return nil // the caller looks again and reports who is left
			}
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// Remove removes the group and its descendants in every hierarchy. It kills nothing: it waits for
// processes that are about to exit, and returns *BusyError if they do not. A group that does not
// exist is not an error.
func Remove(path string) error {
	t, err := system()
	if err != nil {
		return err
	}
	return t.Remove(path)
}

// Remove is the package's Remove on this tree.
func (t *Tree) Remove(path string) error { return t.removeWithin(path, emptyWait) }

func (t *Tree) removeWithin(path string, wait time.Duration) error {
	p, err := clean(path)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(wait)
	for _, dir := range t.dirs() {
		if err := removeTree(filepath.Join(dir, p), deadline); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", p, err)
		}
	}
	return nil
}

// dirs returns the roots of all hierarchies: runc makes a container's group in every mounted one,
// including systemd's own and blkio.
func (t *Tree) dirs() []string {
	dirs := slices.Clone(t.others)
	for _, h := range t.hierarchies {
		dirs = append(dirs, h.dir)
	}
	return dirs
}

// removeTree removes children first.
func removeTree(dir string, deadline time.Time) error {
	err := unix.Rmdir(dir)
	if err == nil || gone(err) {
		return nil
	}
	entries, rerr := os.ReadDir(dir)
	if rerr != nil {
		if gone(rerr) {
			return nil
		}
		return rerr
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name()), deadline); err != nil {
				return err
			}
		}
	}
	return removeEmpty(dir, deadline)
}

// removeEmpty removes a group without children once its last process is gone.
func removeEmpty(dir string, deadline time.Time) error {
	for backoff := time.Millisecond; ; backoff = min(2*backoff, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || gone(err) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("rmdir %s: %w", dir, err)
		}
		pids, perr := procsIn(dir)
		if perr != nil {
			return perr
		}
		left := time.Until(deadline)
		if left <= 0 {
			return &BusyError{dir, pids}
		}
		fds := openPids(pids)
		if len(fds) == 0 {
			// A process has exited but is not reaped yet, or a css is still being released: on v1
			// the kernel gives no event for that.
			time.Sleep(min(backoff, left))
			continue
		}
		err = waitExit(fds, left)
		closeAll(fds)
		if err != nil {
			return err
		}
	}
}
