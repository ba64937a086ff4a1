package e2e

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waitGone waits until a process that is not our child has ended.
func waitGone(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it is gone already
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
	if err != nil || n != 1 {
		t.Fatalf("process %d did not end: %d, %v", pid, n, err)
	}
}
