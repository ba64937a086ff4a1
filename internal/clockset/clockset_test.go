package clockset

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel refuses none of what is asked of it, and the end of the context ends the wait. A test
// must not set the machine's clock, so that no change is told is all that can be seen here.
func TestWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	started, done := make(chan struct{}), make(chan error, 1)
	go func() {
		close(started)
		done <- Watch(ctx, func() { t.Error("nobody has set the clock") })
	}()
	<-started
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A timer that the kernel cancels is armed again, and f is called: played with one that expires.
func TestWatchCallsAgainAndAgain(t *testing.T) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	expire := func() {
		past := unix.ItimerSpec{Value: unix.Timespec{Sec: 1}}
		if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &past, nil); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	go func() { <-ctx.Done(); _ = timer.Close() }()
	if err := arm(timer); err != nil {
		t.Fatal(err)
	}
	expire()
	if err := wait(ctx, timer, func() {
		if calls++; calls == 3 {
			cancel()
			return
		}
		expire()
	}); err != nil || calls != 3 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
