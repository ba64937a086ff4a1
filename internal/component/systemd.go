package component

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	sddaemon "github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"
)

// ErrRestart is what a component returns that is to be started again in the same process: systemd is not told
// that it stops.
var ErrRestart = errors.New("wherry must restart")

// Notify runs a component and, if systemd asked for it, tells systemd when the component serves and
// when it stops (sd_notify(3)).
func Notify(ctx context.Context, ready <-chan struct{}, run func(context.Context) error) error {
	systemd := takeSystemd()
	done := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-ready:
			systemd.tell(ctx, sddaemon.SdNotifyReady)
		case <-done:
		}
	}()
	err := run(context.WithValue(ctx, systemdKey{}, systemd))
	close(done)
	<-told
	if errors.Is(err, ErrRestart) {
		systemd.handOver()
		return err
	}
	systemd.tell(ctx, sddaemon.SdNotifyStopping)
	return err
}

// systemd is the socket on which it listens; "" if it did not ask.
type systemd string

type systemdKey struct{}

// takeSystemd takes the socket for this program alone: the API server's library would
// call the node ready when only the API is.
func takeSystemd() systemd {
	socket := os.Getenv("NOTIFY_SOCKET")
	_ = os.Unsetenv("NOTIFY_SOCKET") // the name of a variable, it cannot fail
	return systemd(socket)
}

// handOver leaves the socket to the program that takes this one's place. Systemd is told nothing:
// it kills a service that says it is stopping and then does not end.
func (s systemd) handOver() {
	if s != "" {
		_ = os.Setenv("NOTIFY_SOCKET", string(s)) // as takeSystemd found it
	}
}

// Watched is Notify for a component that reports its health: while it is healthy, it feeds
// systemd's watchdog, if the unit has one (WatchdogSec=).
func Watched(ctx context.Context, ready <-chan struct{}, healthy func() error, run func(context.Context) error) error {
	return Notify(ctx, ready, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		var fed sync.WaitGroup
		defer fed.Wait()
		defer cancel()
		every, err := sddaemon.SdWatchdogEnabled(false)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read systemd's watchdog settings; the watchdog will not be notified")
		}
		if every > 0 {
			systemd, _ := ctx.Value(systemdKey{}).(systemd)
			fed.Go(func() { systemd.feed(ctx, every/2, healthy) })
		}
		return run(ctx)
	})
}

func (s systemd) feed(ctx context.Context, every time.Duration, healthy func() error) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if err := healthy(); err == nil {
			s.tell(ctx, sddaemon.SdNotifyWatchdog)
		} else {
			klog.FromContext(ctx).Error(err, "Unhealthy, not notifying systemd's watchdog")
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (s systemd) tell(ctx context.Context, state string) {
	if s == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: string(s), Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(state))
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot notify systemd", "state", state)
	}
}
