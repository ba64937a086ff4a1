package oom

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	global = "6,1000,5;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=x,mems_allowed=0,global_oom,task_memcg=/user.slice,task=tail,pid=1234,uid=0\n"
	odd    = "6,1001,5;oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0,cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=a,pid=1,uid=2,b,pid=77,uid=1000\n"
	limit  = "6,1002,5;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/c,task=tail,pid=9,uid=0\n"
	other  = "6,1003,5;Out of memory: Killed process 1234 (tail) total-vm:1kB\n SUBSYSTEM=x\n"
	broken = "6,1004,5;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task=x,pid=none,uid=0\n"
)

// kernel is a log with some records, and then others that nobody can read.
type kernel struct {
	records []any // string or error
	closed  chan struct{}
}

func (k *kernel) Read(p []byte) (int, error) {
	if len(k.records) == 0 {
		<-k.closed
		return 0, os.ErrClosed
	}
	next := k.records[0]
	k.records = k.records[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(p, next.(string)), nil
}

func (k *kernel) Close() error {
	close(k.closed)
	return nil
}

func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k := &kernel{records: []any{other, limit, global, error(unix.EPIPE), broken, odd}, closed: make(chan struct{})}
	told := make(chan Victim)
	done := make(chan error, 1)
	go func() {
		done <- Watch(ctx, func() (io.ReadCloser, error) { return k, nil }, func(v Victim) { told <- v })
	}()
	got := []string{(<-told).String(), (<-told).String()}
	want := []string{"System OOM encountered, victim process: tail, pid: 1234", "System OOM encountered, victim process: a,pid=1,uid=2,b, pid: 77"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	failing := &kernel{records: []any{errors.New("it is on fire")}, closed: make(chan struct{})}
	if err := Watch(t.Context(), func() (io.ReadCloser, error) { return failing, nil }, nil); err == nil {
		t.Error("a log that cannot be read is not told of")
	}
	if err := Watch(t.Context(), func() (io.ReadCloser, error) { return nil, os.ErrPermission }, nil); !errors.Is(err, os.ErrPermission) {
		t.Error(err)
	}
}

// TestTheKernelsOwnLog is read from its end, and let go of when nobody waits any more. Nothing is written to it: it belongs to
// the machine.
func TestTheKernelsOwnLog(t *testing.T) {
	if _, err := os.Stat("/dev/kmsg"); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	done := make(chan error, 1)
	go func() {
		done <- Watch(ctx, func() (io.ReadCloser, error) {
			log, err := KernelLog()
			opened <- err
			return log, err
		}, func(Victim) {})
	}()
	if err := <-opened; err != nil {
		t.Skip(err) // not permitted here
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
