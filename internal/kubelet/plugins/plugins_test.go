package plugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

// plugin is one that registers as upstream's node-driver-registrar does.
type plugin struct {
	registration.UnimplementedRegistrationServer
	info  *registration.PluginInfo
	hangs bool
	deaf  atomic.Int32 // so many times it does not take the answer
	told  chan *registration.RegistrationStatus
}

func (p *plugin) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	if p.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if p.deaf.Add(-1) >= 0 {
		return nil, errors.New("no time")
	}
	p.told <- s
	return &registration.RegistrationStatusResponse{}, nil
}

func newPlugin(kind, name string) *plugin {
	return &plugin{
		info: &registration.PluginInfo{Type: kind, Name: name, SupportedVersions: []string{"1.0.0"}},
		told: make(chan *registration.RegistrationStatus, 100),
	}
}

// serve makes the plugin's socket; die leaves it behind, as kill -9 does.
func (p *plugin) serve(t *testing.T, socket string) (die func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	die = sync.OnceFunc(func() {
		s.Stop()
		<-done
	})
	t.Cleanup(die)
	return die
}

// handler notes what it is told, and refuses names that it has.
type handler struct {
	mu      sync.Mutex
	has     map[string]string
	changed chan string
}

func (h *handler) Register(_ context.Context, p Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.has[p.Name] != "" {
		return errors.New("another plugin has this name")
	}
	h.has[p.Name] = p.Endpoint
	h.changed <- "+" + p.Name
	return nil
}

func (h *handler) Deregister(_ context.Context, p Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.has, p.Name)
	h.changed <- "-" + p.Name
	return nil
}

func (h *handler) expect(t *testing.T, want string) {
	t.Helper()
	if got := <-h.changed; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

// start runs a watcher; the directory's path is short enough for sockets.
func start(t *testing.T) (dir string, h *handler, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugins") //nolint:usetesting // its path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h = &handler{has: map[string]string{}, changed: make(chan string, 100)}
	w := &Watcher{Dir: dir, Handlers: map[string]Handler{registration.CSIPlugin: h}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return dir, h, stop
}

func TestAPluginComesAndGoes(t *testing.T) {
	dir, h, _ := start(t)
	p, socket := newPlugin(registration.CSIPlugin, "d"), filepath.Join(dir, "d-reg.sock")
	p.serve(t, socket)
	h.expect(t, "+d")
	if s := <-p.told; !s.PluginRegistered || s.Error != "" {
		t.Errorf("the plugin was told %v", s)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "-d")
}

func TestAPluginInAFolderOfItsOwnAndOneThatIsHidden(t *testing.T) {
	dir, h, _ := start(t)
	for _, name := range []string{".hidden", "shown"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	newPlugin(registration.CSIPlugin, "hidden").serve(t, filepath.Join(dir, ".hidden", "s"))
	newPlugin(registration.CSIPlugin, "shown").serve(t, filepath.Join(dir, "shown", "s"))
	h.expect(t, "+shown")
}

func TestASocketThatIsMadeAnewIsAnotherPlugin(t *testing.T) {
	dir, h, _ := start(t)
	socket := filepath.Join(dir, "d.sock")
	die := newPlugin(registration.CSIPlugin, "d").serve(t, socket)
	h.expect(t, "+d")
	die()
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	newPlugin(registration.CSIPlugin, "d").serve(t, socket)
	h.expect(t, "-d")
	h.expect(t, "+d")
}

func TestOneNameTwice(t *testing.T) {
	dir, h, _ := start(t)
	first, second := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	newPlugin(registration.CSIPlugin, "d").serve(t, first)
	h.expect(t, "+d")
	late := newPlugin(registration.CSIPlugin, "d")
	late.serve(t, second)
	const want = "RegisterPlugin error -- plugin registration failed with err: another plugin has this name"
	if s := <-late.told; s.PluginRegistered || s.Error != want {
		t.Errorf("the second one was told %v", s)
	}
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "-d")
	h.expect(t, "+d")
	if h.has["d"] != second {
		t.Errorf("the plugin is at %s", h.has["d"])
	}
}

func TestOneThatHangsKeepsNoOtherWaiting(t *testing.T) {
	dir, h, stop := start(t)
	for i := range 3 {
		hung := newPlugin(registration.CSIPlugin, fmt.Sprint("hung", i))
		hung.hangs = true
		hung.serve(t, filepath.Join(dir, hung.info.Name))
	}
	newPlugin(registration.CSIPlugin, "d").serve(t, filepath.Join(dir, "d"))
	h.expect(t, "+d")
	stop() // it waits for all that was begun
}

func TestATypeThatNobodyTakes(t *testing.T) {
	dir, h, _ := start(t)
	p := newPlugin("Toaster", "t")
	socket := filepath.Join(dir, "t")
	p.serve(t, socket)
	want := "RegisterPlugin error -- no handler registered for plugin type: Toaster at socket " + socket
	if s := <-p.told; s.PluginRegistered || s.Error != want {
		t.Errorf("the plugin was told %v", s)
	}
	// A file that is not a socket, and a socket at which nobody answers, are no plugins.
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newPlugin(registration.CSIPlugin, "gone").serve(t, filepath.Join(dir, "dead"))()
	newPlugin(registration.CSIPlugin, "d").serve(t, filepath.Join(dir, "d"))
	var seen []string
	for !slices.Contains(seen, "+d") {
		seen = append(seen, <-h.changed)
	}
}

func TestPluginsStayWhenTheKubeletStops(t *testing.T) {
	dir, h, stop := start(t)
	newPlugin(registration.CSIPlugin, "d").serve(t, filepath.Join(dir, "d"))
	h.expect(t, "+d")
	stop()
	if h.has["d"] == "" || len(h.changed) > 0 {
		t.Errorf("the plugin was deregistered")
	}
}

// A plugin that could not be told that it is registered waited for ever.
func TestPluginIsToldUntilItHears(t *testing.T) {
	dir, h, stop := start(t)
	defer stop()
	p := newPlugin(registration.CSIPlugin, "p")
	p.deaf.Store(2)
	p.serve(t, filepath.Join(dir, "p.sock"))
	h.expect(t, "+p")
	if s := <-p.told; !s.PluginRegistered || s.Error != "" {
		t.Errorf("it is told %v", s)
	}
	if err := os.Remove(filepath.Join(dir, "p.sock")); err != nil {
		t.Fatal(err)
	}
	h.expect(t, "-p")
	select {
	case s := <-p.told:
		t.Errorf("it is told again: %v", s)
	default:
	}
}
