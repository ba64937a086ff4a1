package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/inbound"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/plugins"
)

const (
	// connectTimeout is for how long a plugin that has registered may take to answer, as upstream has it.
	connectTimeout = 10 * time.Second
	// allocateTimeout is for a plugin that is asked for a container's devices. Upstream waits for ever; here the pod waits
	// no longer than this, and is refused.
	allocateTimeout = time.Minute
)

// plugin is one registration of a plugin: it ends when its stream of devices does.
type plugin struct {
	resource string
	// number is greater than that of all plugins that registered before.
	number  uint64
	options *pluginapi.DevicePluginOptions
	client  pluginapi.DevicePluginClient
	// end closes its connection.
	end context.CancelFunc
}

// registrations is the service that plugins register with.
type registrations struct {
	pluginapi.UnimplementedRegistrationServer
	m *Manager
	// ctx ends with the kubelet; every plugin has a goroutine in running.
	ctx     context.Context //nolint:containedctx // the life of what requests start, which outlives them
	running *sync.WaitGroup
}

// serve makes the socket at which plugins register. Plugins watch it: one that is made anew has them register again.
func (m *Manager) serve(ctx context.Context) (stop func(), err error) {
	if err := os.MkdirAll(m.cfg.Dir, 0o750); err != nil {
		return nil, err
	}
	path := filepath.Join(m.cfg.Dir, filepath.Base(pluginapi.KubeletSocket))
	l, err := inbound.ListenRoot(ctx, path)
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	s := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(s, &registrations{m: m, ctx: ctx, running: &running})
	running.Go(func() {
		if err := s.Serve(l); err != nil {
			klog.FromContext(ctx).Error(err, "Device plugins cannot register any more")
		}
	})
	return func() {
		s.Stop()
		running.Wait()
	}, nil
}

// Register implements pluginapi.RegistrationServer.
func (r *registrations) Register(ctx context.Context, in *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	log := klog.FromContext(ctx).WithValues("resource", in.GetResourceName(), "endpoint", in.GetEndpoint())
	err := r.check(in)
	if err != nil {
		log.Error(err, "Refused a device plugin")
		return nil, err
	}
	path, err := r.m.socket(in.GetEndpoint())
	if err != nil {
		log.Error(err, "Refused a device plugin")
		return nil, err
	}
	number := r.m.registered.Add(1)
	log.Info("Device plugin registers")
	metrics.DevicePlugins.WithLabelValues(in.GetResourceName()).Inc()
	conn, err := plugins.Dial(path, grpc.WithAuthority("localhost"))
	if err != nil {
		log.Error(err, "Cannot reach device plugin")
		return nil, fmt.Errorf("cannot reach the device plugin at %s: %w", path, err)
	}
	p := &plugin{resource: in.GetResourceName(), number: number, client: pluginapi.NewDevicePluginClient(conn)}
	if p.options, err = p.ask(ctx); err != nil {
		log.Error(err, "Device plugin does not answer; it has to register again")
		return nil, errors.Join(fmt.Errorf("failed to get device plugin options: %w", err), conn.Close())
	}
	r.running.Go(func() {
		defer func() { _ = conn.Close() }()
		r.m.follow(r.ctx, p)
	})
	return &pluginapi.Empty{}, nil
}

func (r *registrations) check(in *pluginapi.RegisterRequest) error {
	if in.GetVersion() != pluginapi.Version {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", in.GetVersion(), pluginapi.Version)
	}
	if !validation.IsExtendedResource(v1.ResourceName(in.GetResourceName())) {
		return fmt.Errorf("the ResourceName %q is invalid", in.GetResourceName())
	}
	return nil
}

// follow takes over what a plugin tells until its stream ends.
func (m *Manager) follow(ctx context.Context, p *plugin) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.end = cancel
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var told *pluginapi.ListAndWatchResponse
		if told, err = stream.Recv(); err == nil {
			m.take(p, told.GetDevices())
		}
	}
	if m.left(p) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Device plugin has gone; its devices count as unhealthy until it registers again", "resource", p.resource)
	}
}

func (p *plugin) ask(ctx context.Context) (*pluginapi.DevicePluginOptions, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return p.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
}

// take replaces the devices of a resource. A plugin that registers for a resource takes the place of the one before,
// whose last words may come after it.
func (m *Manager) take(p *plugin, list []*pluginapi.Device) {
	devices := map[string]*pluginapi.Device{}
	for _, d := range list {
		if d.GetID() != "" {
			devices[d.GetID()] = d
		}
	}
	m.mu.Lock()
	of := m.known[p.resource]
	if of == nil {
		of = &inventory{}
		m.known[p.resource] = of
	}
	before := of.plugin
	if before != nil && before.number > p.number {
		m.mu.Unlock()
		p.end()
		return
	}
	of.plugin, of.devices, of.since = p, devices, time.Time{}
	delete(m.gone, p.resource)
	m.mu.Unlock()
	if before != nil && before != p {
		before.end()
	}
	m.changed()
}

// left notes that a plugin has gone, and reports whether it was the one of its resource. The node offers none of a
// resource of which the first plugin goes before it tells of any device.
func (m *Manager) left(p *plugin) bool {
	m.mu.Lock()
	of := m.known[p.resource]
	if of == nil {
		of = &inventory{plugin: p}
		m.known[p.resource] = of
	}
	was := of.plugin == p
	if was {
		of.since = time.Now()
	}
	m.mu.Unlock()
	if was {
		m.changed()
	}
	return was
}

// pluginOf returns the plugin of a resource, nil if it is not there.
func (m *Manager) pluginOf(name string) *plugin {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of := m.known[name]; of != nil && of.since.IsZero() {
		return of.plugin
	}
	return nil
}
