package component

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	sddaemon "github.com/coreos/go-systemd/v22/daemon"
)

// listen makes the test systemd, and returns what it hears next. It listens for a minute.
func listen(t *testing.T) (hear func() string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	return func() string {
		t.Helper()
		buf := make([]byte, 100)
		n, err := l.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

// A node that restarts in its own place is not stopping: systemd would kill one that said so. The
// next program finds the socket, and only its own end is reported.
func TestRestartInPlaceIsNoEndForSystemd(t *testing.T) {
	hear := listen(t)
	run := func(end error) {
		t.Helper()
		ready := make(chan struct{})
		if err := Notify(t.Context(), ready, func(context.Context) error {
			close(ready)
			if got := hear(); got != "READY=1" {
				t.Errorf("when it is ready: %q", got)
			}
			return end
		}); !errors.Is(err, end) {
			t.Error(err)
		}
	}
	run(ErrRestart)
	run(nil)
	if got := hear(); got != "STOPPING=1" {
		t.Errorf("at the end: %q", got)
	}
}

func TestSystemdHearsWhatMatters(t *testing.T) {
	hear := listen(t)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(int(20*time.Millisecond/time.Microsecond)))
	ready, ill := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Watched(ctx, ready, func() error {
			select {
			case err := <-ill:
				return err
			default:
				return nil
			}
		}, func(ctx context.Context) error {
			// The API server's library announces itself as ready like this, before the node is.
			if _, err := sddaemon.SdNotify(true, "READY=1 of a library"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil
		})
	}()
	if got := hear(); got != "WATCHDOG=1" {
		t.Errorf("first %q", got)
	}
	ill <- errors.New("ill")
	close(ready)
	for got := hear(); got != "READY=1"; got = hear() {
		if got != "WATCHDOG=1" {
			t.Errorf("before it is ready: %q", got)
		}
	}
	cancel()
	for got := hear(); got != "STOPPING=1"; got = hear() {
		if got != "WATCHDOG=1" {
			t.Errorf("after it was ready: %q", got)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
