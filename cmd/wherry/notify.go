package main

import (
	"context"
	"os"

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

func tell(ctx context.Context, state string) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	if _, err := sddaemon.SdNotify(false, state); err != nil {
		klog.FromContext(ctx).Error(err, "systemd cannot be told", "state", state)
	}
}
