package shutdown

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"

	"wherry.dev/internal/record"
)

// Names of logind on the bus (org.freedesktop.login1(5)).
const (
	service = "org.freedesktop.login1"
	object  = dbus.ObjectPath("/org/freedesktop/login1")
	manager = "org.freedesktop.login1.Manager"
)

// dropIns has logind's configuration files; ours raises the time that logind waits.
const dropIns = "/etc/systemd/logind.conf.d"

// Logind connects to logind on the system bus.
func Logind(ctx context.Context) (Login, error) { return dial(ctx, dropIns) }

func dial(ctx context.Context, dir string) (Login, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to the D-Bus system bus: %w", err)
	}
	return &logind{conn: conn, dir: dir}, nil
}

type logind struct {
	conn *dbus.Conn
	dir  string
}

func (l *logind) Close() error { return l.conn.Close() }

// delay returns how long logind waits at most.
func (l *logind) delay(ctx context.Context) (time.Duration, error) {
	var usec dbus.Variant
	call := l.conn.Object(service, object).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, "InhibitDelayMaxUSec")
	if err := call.Store(&usec); err != nil {
		return 0, fmt.Errorf("read logind's InhibitDelayMaxUSec: %w", err)
	}
	n, ok := usec.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("read logind's InhibitDelayMaxUSec: it is a %T, not a number", usec.Value())
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Reserve raises logind's limit with a configuration file if it is too low, and makes logind read
// it.
func (l *logind) Reserve(ctx context.Context, want time.Duration) error {
	have, err := l.delay(ctx)
	if err != nil || have >= want {
		return err
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("configure logind: %w", err)
	}
	text := fmt.Sprintf("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=%.0f\n", want.Seconds())
	if err := record.WriteFile(filepath.Join(l.dir, "99-kubelet.conf"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("configure logind: %w", err)
	}
	const systemd = "org.freedesktop.systemd1"
	kill := l.conn.Object(systemd, "/org/freedesktop/systemd1").CallWithContext(ctx, systemd+".Manager.KillUnit", 0, "systemd-logind.service", "all", int32(1))
	if kill.Err != nil {
		return fmt.Errorf("reload logind: %w", kill.Err)
	}
	// logind does not say when it has read its configuration.
	for wait := 100 * time.Millisecond; wait <= 1600*time.Millisecond; wait *= 2 {
		if have, err = l.delay(ctx); err != nil || have >= want {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
	return fmt.Errorf("logind delays a shutdown by %v at most, but shutdownGracePeriod is %v; see InhibitDelayMaxSec in logind.conf(5)", have, want)
}

// Inhibit takes a delay lock, which is a file.
func (l *logind) Inhibit(ctx context.Context) (io.Closer, error) {
	var fd dbus.UnixFD
	call := l.conn.Object(service, object).CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
	if err := call.Store(&fd); err != nil {
		return nil, fmt.Errorf("take logind's inhibitor lock: %w", err)
	}
	return os.NewFile(uintptr(fd), "logind-inhibitor"), nil
}

// Shutdowns follows the signal PrepareForShutdown.
func (l *logind) Shutdowns(ctx context.Context) (<-chan bool, error) {
	if err := l.conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(manager), dbus.WithMatchMember("PrepareForShutdown"), dbus.WithMatchObjectPath(object)); err != nil {
		return nil, fmt.Errorf("subscribe to logind's signals: %w", err)
	}
	signals := make(chan *dbus.Signal, 4)
	l.conn.Signal(signals)
	out := make(chan bool)
	go func() { // ends with the connection, which closes signals
		defer close(out)
		for s := range signals {
			if s.Name != manager+".PrepareForShutdown" || len(s.Body) == 0 {
				continue
			}
			if down, ok := s.Body[0].(bool); ok {
				select {
				case out <- down:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out, nil
}
