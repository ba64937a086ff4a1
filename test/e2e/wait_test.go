package e2e

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// until waits for something for which there is no watch.
func (c *cluster) until(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s within %s", what, patience)
		}
	}
}

// awaitLog waits until kubectl shows a log as wanted. A container runs before it prints anything,
// and its log has that later still.
func (c *cluster) awaitLog(want string, args ...string) {
	c.t.Helper()
	args = append([]string{"logs"}, args...)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		got := c.kubectl(args...)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("kubectl %s: %q, want %q", strings.Join(args, " "), got, want)
		}
	}
}

// whenSet makes a pod ready once its script has made the file /set, rather than as soon as it runs.
func whenSet(p *v1.Pod) {
	p.Spec.Containers[0].ReadinessProbe = &v1.Probe{
		ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"test", "-e", "/set"}}}, PeriodSeconds: 1, TimeoutSeconds: 60,
	}
}

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
