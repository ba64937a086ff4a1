package main

import (
	"context"
	"os"
	"sync"
	"time"

	sddaemon "github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"
)

// notify runs a component and tells systemd, where it asked, when it serves and
// when it stops (sd_notify(3)).
func notify(ctx context.Context, ready <-chan struct{}, run func(context.Context) error) error {
	done := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-ready:
			tell(ctx, sddaemon.SdNotifyReady)
		case <-done:
		}
	}()
	err := run(ctx)
	close(done)
	<-told
	tell(ctx, sddaemon.SdNotifyStopping)
	return err
}

// watched is notify for a component that tells how it is: while it is well, systemd's
// watchdog is fed, where the unit has one (WatchdogSec=).
func watched(ctx context.Context, ready <-chan struct{}, healthy func() error, run func(context.Context) error) error {
	return notify(ctx, ready, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		var fed sync.WaitGroup
		defer fed.Wait()
		defer cancel()
		every, err := sddaemon.SdWatchdogEnabled(false)
		if err != nil {
			klog.FromContext(ctx).Error(err, "The watchdog of systemd cannot be fed")
		}
		if every > 0 {
			fed.Go(func() { feed(ctx, every/2, healthy) })
		}
		return run(ctx)
	})
}

func feed(ctx context.Context, every time.Duration, healthy func() error) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if err := healthy(); err == nil {
			tell(ctx, sddaemon.SdNotifyWatchdog)
		} else {
			klog.FromContext(ctx).Error(err, "Not well, systemd's watchdog is not fed")
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func tell(ctx context.Context, state string) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	if _, err := sddaemon.SdNotify(false, state); err != nil {
		klog.FromContext(ctx).Error(err, "systemd cannot be told", "state", state)
	}
}
