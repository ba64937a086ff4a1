// Package clockset tells when the machine's clock is set, or the machine wakes from sleep. Timers of a
// process run on the monotonic clock: they notice neither, and whoever waits for a time of day has to
// look again.
package clockset

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls f after each change of the clock that is more than a slewing, until ctx ends. The kernel
// tells (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET); nothing is polled.
func Watch(ctx context.Context, f func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch the clock: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	defer func() { _ = timer.Close() }() // it holds nothing
	stop := context.AfterFunc(ctx, func() { _ = timer.Close() })
	defer stop()
	if err := arm(timer); err != nil && ctx.Err() == nil {
		return err
	}
	return wait(ctx, timer, f)
}

// wait calls f each time when the timer ends, until ctx does.
func wait(ctx context.Context, timer *os.File, f func()) error {
	for buf := make([]byte, 8); ; {
		_, err := timer.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the timer was closed because ctx ended
		case err != nil && !errors.Is(err, unix.ECANCELED):
			return fmt.Errorf("watch the clock: %w", err)
		}
		// First, so that a change that f does not see any more is told again.
		if err := arm(timer); err != nil && ctx.Err() == nil {
			return err
		}
		f()
	}
}

// arm sets the timer to a time that never comes, so that it only ever ends by a change of the clock.
func arm(timer *os.File) error {
	conn, err := timer.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch the clock: %w", err)
	}
	const farAway = 1 << 33 // seconds: the year 2242
	spec := unix.ItimerSpec{Value: unix.Timespec{Sec: farAway}}
	var setErr error
	err = conn.Control(func(fd uintptr) {
		setErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &spec, nil)
	})
	if errors.Is(setErr, unix.ECANCELED) { // it was set since the last look; whoever arms looks again
		setErr = nil
	}
	if err := errors.Join(err, setErr); err != nil {
		return fmt.Errorf("watch the clock: %w", err)
	}
	return nil
}
