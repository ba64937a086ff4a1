// Package plugins finds the plugins of the kubelet. A plugin makes a socket in a folder of the kubelet's, at which it
// says what it is (pluginregistration v1). It is handed to whoever takes plugins of its type, and taken back when the
// socket goes, or is made anew.
//
// Each socket has a goroutine of its own: a plugin that does not answer keeps no other one waiting. What the folder
// has is looked at again with every event of the kernel; nothing is taken from the event itself.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Plugin is what a plugin says of itself.
type Plugin struct {
	// Type is one of those of pluginregistration v1: CSIPlugin, DRAPlugin, DevicePlugin.
	Type, Name string
	// Endpoint is the path of the socket at which it serves.
	Endpoint string
	Versions []string
	// Socket is the path of the socket at which it registered.
	Socket string
}

// Handler takes plugins of one type. Calls that concern the same socket come one after another.
type Handler interface {
	// Register takes a plugin, or says why not. It is asked again later if it does not.
	Register(ctx context.Context, p Plugin) error
	// Deregister takes back a plugin that was registered.
	Deregister(ctx context.Context, p Plugin) error
}

// Watcher finds plugins.
type Watcher struct {
	// Dir is the folder; sockets may be in folders below it, unless these are hidden.
	Dir string
	// Handlers by type.
	Handlers map[string]Handler

	visits map[string]*visit // by path of the socket; only Run's goroutine uses it
	mu     sync.Mutex
	again  chan struct{} // closed, and replaced, when a plugin has gone
}

// visit is what there is to do for one socket.
type visit struct {
	made  identity
	leave context.CancelCauseFunc
	done  chan struct{}
}

// identity tells a socket from another one that had its name before.
type identity struct {
	dev, inode uint64
	changed    unix.Timespec
}

var errGone = errors.New("the plugin's socket is gone")

// Run registers plugins until the context ends. Plugins that are registered then stay so: they outlive the kubelet.
func (w *Watcher) Run(ctx context.Context) error {
	if err := os.MkdirAll(w.Dir, 0o750); err != nil {
		return fmt.Errorf("watch plugins: %w", err)
	}
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch plugins: %w", err)
	}
	defer func() { _ = events.Close() }()
	w.visits, w.again = map[string]*visit{}, make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	for {
		if err := w.look(ctx, events, &all); err != nil {
			return fmt.Errorf("watch plugins: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events.Events:
			if !ok {
				return errors.New("watch plugins: the watch ended")
			}
		case err := <-events.Errors: // events may be lost, which does not matter
			klog.FromContext(ctx).Error(err, "Failed to watch the plugins' folder", "path", w.Dir)
		}
	}
}

// look begins a visit for each socket that is new, and ends those of sockets that are no longer there.
func (w *Watcher) look(ctx context.Context, events *fsnotify.Watcher, all *sync.WaitGroup) error {
	now, err := sockets(w.Dir, events)
	if err != nil {
		return err
	}
	before := w.visits
	w.visits = map[string]*visit{}
	for path, old := range before {
		if made, there := now[path]; there && made == old.made {
			w.visits[path] = old
			continue
		}
		old.leave(errGone)
	}
	for path, made := range now {
		if w.visits[path] != nil {
			continue
		}
		visiting, leave := context.WithCancelCause(ctx)
		v := &visit{made: made, leave: leave, done: make(chan struct{})}
		w.visits[path] = v
		all.Go(func() {
			defer close(v.done)
			defer leave(nil)
			if old := before[path]; old != nil {
				<-old.done
			}
			w.attend(ctx, visiting, path)
		})
	}
	return nil
}

// sockets returns those in a folder and below, and has all folders watched before they are read.
func sockets(dir string, events *fsnotify.Watcher) (map[string]identity, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil { // somebody may have removed it
		return nil, err
	}
	found := map[string]identity{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // it vanished meanwhile
			return nil
		case err != nil:
			return err
		case path != dir && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case e.IsDir():
			if err := events.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		case e.Type()&fs.ModeSocket == 0:
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil {
			found[path] = identity{st.Dev, st.Ino, st.Ctim}
		}
		return nil
	})
	return found, err
}

// The waits between two attempts to register a plugin.
const (
	firstWait = 500 * time.Millisecond
	mostWait  = 2*time.Minute + 2*time.Second
)

// attend registers the plugin behind a socket, and deregisters it when the socket is gone. ctx outlives the visit.
func (w *Watcher) attend(ctx, visiting context.Context, socket string) {
	log := klog.FromContext(ctx).WithValues("socket", socket)
	var p Plugin
	try := func(step func() error) (ok bool) {
		for wait := firstWait; ; wait = min(2*wait, mostWait) {
			again := w.anyGone()
			err := step()
			if err == nil {
				return true
			}
			if visiting.Err() == nil {
				log.Error(err, "Failed to register a plugin, will try again", "after", wait)
			}
			timer := time.NewTimer(wait)
			select {
			case <-visiting.Done():
				timer.Stop()
				return false
			case <-again: // perhaps the one whose name it has
			case <-timer.C:
			}
			timer.Stop()
		}
	}
	if !try(func() (err error) { p, err = w.register(visiting, socket); return err }) {
		return
	}
	log.Info("Registered a plugin", "type", p.Type, "name", p.Name, "endpoint", p.Endpoint)
	// It serves already, but may wait to hear that it is registered.
	if try(func() error { return tell(visiting, socket, nil) }) {
		<-visiting.Done()
	}
	if ctx.Err() != nil {
		return
	}
	if err := w.Handlers[p.Type].Deregister(ctx, p); err != nil && ctx.Err() == nil {
		log.Error(err, "Failed to deregister a plugin", "type", p.Type, "name", p.Name)
	}
	log.Info("Deregistered a plugin", "type", p.Type, "name", p.Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.again)
	w.again = make(chan struct{})
}

func (w *Watcher) anyGone() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.again
}

// answerTime is how long a plugin may take to answer.
const answerTime = 10 * time.Second

// register asks the plugin what it is, hands it over, and tells it an error. Errors are upstream's words, which the plugin's
// own log shows.
func (w *Watcher) register(ctx context.Context, socket string) (Plugin, error) {
	conn, err := Dial(socket)
	if err != nil {
		return Plugin{}, fmt.Errorf("RegisterPlugin error -- dial failed at socket %s, err: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	client := registration.NewRegistrationClient(conn)
	asking, cancel := context.WithTimeout(ctx, answerTime)
	info, err := client.GetInfo(asking, &registration.InfoRequest{})
	cancel()
	if err != nil {
		return Plugin{}, fmt.Errorf("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket %s, err: %w", socket, err)
	}
	p := Plugin{Type: info.Type, Name: info.Name, Endpoint: info.Endpoint, Versions: info.SupportedVersions, Socket: socket}
	if p.Endpoint == "" {
		p.Endpoint = socket
	}
	handler := w.Handlers[p.Type]
	if handler == nil {
		err = fmt.Errorf("RegisterPlugin error -- no handler registered for plugin type: %s at socket %s", p.Type, socket)
	} else if err = handler.Register(ctx, p); err != nil {
		err = fmt.Errorf("RegisterPlugin error -- plugin registration failed with err: %w", err)
	}
	if err != nil {
		return p, errors.Join(err, tell(ctx, socket, err))
	}
	return p, nil
}

// tell tells a plugin that it is registered, or why not.
func tell(ctx context.Context, socket string, why error) error {
	result := &registration.RegistrationStatus{PluginRegistered: why == nil}
	if why != nil {
		result.Error = why.Error()
	}
	conn, err := Dial(socket)
	if err == nil {
		defer func() { _ = conn.Close() }()
		telling, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		_, err = registration.NewRegistrationClient(conn).NotifyRegistrationStatus(telling, result)
	}
	if err != nil {
		return fmt.Errorf("RegisterPlugin error -- failed to send registration status at socket %s, err: %w", socket, err)
	}
	return nil
}
