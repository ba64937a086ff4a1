package shutdown

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

func TestPeriods(t *testing.T) {
	sec := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	for name, tc := range map[string]struct {
		k    kubeletconfig.KubeletConfiguration
		want string
	}{
		"off":      {kubeletconfig.KubeletConfiguration{}, "[]"},
		"two":      {kubeletconfig.KubeletConfiguration{ShutdownGracePeriod: sec(30), ShutdownGracePeriodCriticalPods: sec(10)}, "[{0 20} {2000000000 10}]"},
		"priority": {kubeletconfig.KubeletConfiguration{ShutdownGracePeriodByPodPriority: []Period{{Priority: 10, ShutdownGracePeriodSeconds: 1}, {Priority: -5, ShutdownGracePeriodSeconds: 2}}}, "[{-5 2} {10 1}]"},
	} {
		if got := fmt.Sprint(Periods(&tc.k)); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func pod(name string, priority *int32, grace *int64) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Priority: priority, TerminationGracePeriodSeconds: grace}}
}

func TestGroups(t *testing.T) {
	periods := []Period{{Priority: 10}, {Priority: 100}, {Priority: 1000}}
	pods := []*v1.Pod{
		pod("none", nil, nil), pod("9", ptr.To[int32](9), nil), pod("10", ptr.To[int32](10), nil), pod("99", ptr.To[int32](99), nil),
		pod("100", ptr.To[int32](100), nil), pod("5000", ptr.To[int32](5000), nil),
	}
	var got []string
	for _, g := range groups(periods, pods) {
		var names []string
		for _, p := range g.pods {
			names = append(names, p.Name)
		}
		got = append(got, strings.Join(names, ","))
	}
	if want := []string{"none,9,10,99", "100", "5000"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// machine is a node together with its logind.
type machine struct {
	mu        sync.Mutex
	pods      []*v1.Pod
	log       []string
	takes     map[string]time.Duration // how long a pod takes to end
	ended     map[string]chan struct{}
	shutdowns chan bool
	began     time.Time
}

func (m *machine) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, fmt.Sprintf("%v ", time.Since(m.began))+fmt.Sprintf(format, args...))
}

func (m *machine) Active() []*v1.Pod { return m.pods }
func (m *machine) End(p *v1.Pod, grace int64) {
	m.note("end %s %d", p.Name, grace)
	time.AfterFunc(m.takes[p.Name], func() { close(m.ended[p.Name]) })
}

func (m *machine) Ended(ctx context.Context, p *v1.Pod) {
	select {
	case <-m.ended[p.Name]:
	case <-ctx.Done():
	}
}
func (m *machine) ShuttingDown(_ context.Context, down bool) { m.note("down %v", down) }

func (m *machine) Reserve(_ context.Context, d time.Duration) error {
	m.note("reserve %v", d)
	return nil
}

func (m *machine) Inhibit(context.Context) (io.Closer, error) {
	m.note("lock")
	return m, nil
}
func (m *machine) Shutdowns(context.Context) (<-chan bool, error) { return m.shutdowns, nil }
func (m *machine) Close() error {
	m.note("close")
	return nil
}

func TestPodsEndGroupByGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{
			shutdowns: make(chan bool), began: time.Now(),
			pods:  []*v1.Pod{pod("a", nil, ptr.To[int64](5)), pod("hangs", nil, ptr.To[int64](600)), pod("critical", ptr.To[int32](2000000000), nil)},
			takes: map[string]time.Duration{"a": time.Second, "hangs": time.Hour, "critical": 2 * time.Second},
			ended: map[string]chan struct{}{"a": make(chan struct{}), "hangs": make(chan struct{}), "critical": make(chan struct{})},
		}
		ctx, cancel := context.WithCancel(t.Context())
		mgr := &Manager{
			Periods: []Period{{Priority: 0, ShutdownGracePeriodSeconds: 20}, {Priority: 2000000000, ShutdownGracePeriodSeconds: 10}},
			Node:    m, Dir: t.TempDir(), Dial: func(context.Context) (Login, error) { return m, nil },
		}
		done := make(chan error, 1)
		go func() { done <- mgr.Run(ctx) }()
		m.shutdowns <- true
		m.shutdowns <- false
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []string{
			"0s reserve 30s", "0s lock", "0s down true", "0s end a 5", "0s end hangs 20", "20s end critical 10", "22s close",
			"22s down false", "22s lock", "22s close", "22s close",
		}
		if !slices.Equal(m.log, want) {
			t.Errorf("%q, want %q", m.log, want)
		}
		metrics.Register()
		metrics.ShutdownEnd.Set(0)
		after := &state{path: mgr.state.path} // when the machine has come up again
		after.load(t.Context())
		if took := after.last.EndTime.Sub(after.last.StartTime); !after.last.StartTime.Equal(m.began) || took != 22*time.Second {
			t.Errorf("%+v", after.last)
		}
		if at, err := testutil.GetGaugeMetricValue(metrics.ShutdownEnd); err != nil || int64(at) != after.last.EndTime.Unix() {
			t.Errorf("%v, %v", at, err)
		}
		time.Sleep(2 * time.Hour) // for the timer of the pod that hangs
	})
}

// fakeLogind answers like logind, on a bus of its own.
type fakeLogind struct {
	conn  *dbus.Conn
	props *prop.Properties
	mu    sync.Mutex
	locks []*os.File // our end of each lock: it reads EOF when the lock is released
	given []*os.File // the other end, until the bus has duplicated it
	kills int
}

func (f *fakeLogind) Inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(fmt.Errorf("what %q mode %q", what, mode))
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locks, f.given = append(f.locks, r), append(f.given, w)
	return dbus.UnixFD(w.Fd()), nil
}

// handedOver closes what was handed out, once the other side has it.
func (f *fakeLogind) handedOver() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.given {
		_ = w.Close()
	}
	f.given = nil
}

// KillUnit makes logind read its configuration.
func (f *fakeLogind) KillUnit(unit, _ string, signal int32) *dbus.Error {
	if unit != "systemd-logind.service" || signal != 1 {
		return dbus.MakeFailedError(fmt.Errorf("%s %d", unit, signal))
	}
	f.mu.Lock()
	f.kills++
	f.mu.Unlock()
	f.props.SetMust(manager, "InhibitDelayMaxUSec", uint64(30*time.Second/time.Microsecond))
	return nil
}

// newBus starts a message bus with a fake logind on it.
func newBus(t *testing.T) *fakeLogind {
	t.Helper()
	daemon, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("no dbus-daemon; on Debian it is in the package dbus")
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "bus.conf")
	text := `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>unix:dir=` + dir + `</listen><policy context="default"><allow send_destination="*"/><allow own="*"/><allow receive_sender="*"/></policy></busconfig>`
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), daemon, "--nofork", "--print-address", "--config-file="+conf)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", strings.TrimSpace(address))
	f := &fakeLogind{}
	if f.conn, err = dbus.Connect(strings.TrimSpace(address)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.conn.Close() })
	f.props, err = prop.Export(f.conn, object, prop.Map{manager: {"InhibitDelayMaxUSec": {Value: uint64(5 * time.Second / time.Microsecond), Emit: prop.EmitFalse}}})
	if err != nil {
		t.Fatal(err)
	}
	for path, iface := range map[dbus.ObjectPath]string{object: manager, "/org/freedesktop/systemd1": "org.freedesktop.systemd1.Manager"} {
		if err := f.conn.Export(f, path, iface); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{service, "org.freedesktop.systemd1"} {
		if r, err := f.conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || r != dbus.RequestNameReplyPrimaryOwner {
			t.Fatalf("%v, %v", r, err)
		}
	}
	return f
}

func TestLogindOnARealBus(t *testing.T) {
	f := newBus(t)
	dir := t.TempDir()
	login, err := dial(t.Context(), filepath.Join(dir, "logind.conf.d"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = login.Close() }()
	if err := login.Reserve(t.Context(), 30*time.Second); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "logind.conf.d", "99-kubelet.conf"))
	if err != nil || !strings.Contains(string(got), "[Login]\nInhibitDelayMaxSec=30\n") || f.kills != 1 {
		t.Errorf("%s, %v, %d", got, err, f.kills)
	}
	if err := login.Reserve(t.Context(), 20*time.Second); err != nil || f.kills != 1 {
		t.Errorf("it was long enough: %v", err)
	}
	lock, err := login.Inhibit(t.Context())
	f.handedOver()
	if err != nil {
		t.Fatal(err)
	}
	shutdowns, err := login.Shutdowns(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, down := range []bool{true, false} {
		if err := f.conn.Emit(object, manager+".PrepareForShutdown", down); err != nil {
			t.Fatal(err)
		}
		if got, ok := <-shutdowns; !ok || got != down {
			t.Errorf("%v, %v", got, ok)
		}
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	r := f.locks[0]
	f.mu.Unlock()
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the lock is not let go: %d, %v", n, err)
	}
	_ = r.Close()
	if err := login.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := <-shutdowns; ok {
		t.Error("the channel is open without a connection")
	}
}

func TestNoBusIsAnError(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	if _, err := Logind(t.Context()); err == nil {
		t.Error("connected to nothing")
	}
}
