// Package devices gives containers the devices of device plugins (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1).
//
// A plugin registers at <folder>/kubelet.sock and serves at a socket beside it. It tells of its devices for as long as
// its stream lasts (plugin.go); the node offers their number as an extended resource. Which devices a container gets is
// decided when its pod is admitted (choose.go), and what the plugin says that the container needs is asked for then, once.
// Both are in the pod's record: what others hold is read from there, so that no device is given twice, whoever is killed
// when.
//
// A plugin that has gone may come back: for some minutes its devices count as unhealthy, and then they are forgotten. The
// same is true of plugins that were there before the kubelet was started: a pod that asks for their devices waits
// meanwhile (upstream refuses it, for good). Their resources' names are all that is kept in a file.
package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"wherry.dev/internal/kubelet/numa"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/record"
)

// Patience is for how long a plugin that has gone may come back before its devices are forgotten (upstream's
// endpointStopGracePeriod).
const Patience = 5 * time.Minute

// Config is what a Manager needs to know.
type Config struct {
	// Dir has the sockets, upstream's device-plugins folder. State is a file with the resources that the node has offered.
	Dir, State string
	// Nodes are the machine's NUMA nodes, if what pods get is aligned with them. Others that plugins name do not count.
	Nodes numa.Nodes
	// Changed, if not nil, is called when devices have come, gone or changed. It must not call the Manager.
	Changed func()
}

// Manager knows the devices of all plugins. Create one with New.
type Manager struct {
	cfg Config

	mu    sync.Mutex // no I/O under it
	known map[string]*inventory
	// gone are resources that were forgotten: the node says that it has none, instead of saying nothing.
	gone map[string]bool
	// saved are the names in the state file.
	saved []string
	// registered counts registrations.
	registered atomic.Uint64
	// poke wakes Run when the plugins have changed.
	poke chan struct{}
}

// inventory is what a plugin has told of one resource.
type inventory struct {
	// plugin is nil if it has not registered since the kubelet was started.
	plugin *plugin
	// devices by ID; what a plugin that has gone had told of.
	devices map[string]*pluginapi.Device
	// since is when the plugin went, or when the kubelet began to wait for it; zero while it is there.
	since time.Time
}

// New returns a Manager that expects the plugins that were there before.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, known: map[string]*inventory{}, gone: map[string]bool{}, poke: make(chan struct{}, 1)}
	data, err := os.ReadFile(cfg.State)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device plugins: %w", err)
	}
	if err := json.Unmarshal(data, &m.saved); err != nil {
		klog.Background().Error(err, "The names of the device plugins that were there before are lost; pods do not wait for them", "file", cfg.State)
		m.saved = nil
	}
	for _, name := range m.saved {
		m.known[name] = &inventory{since: time.Now()}
	}
	return m, nil
}

// Run serves registrations until ctx ends, and forgets plugins that do not come back.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, err := m.serve(ctx)
	if err != nil {
		return fmt.Errorf("device plugins: %w", err)
	}
	defer stop()
	for {
		next := m.forget(time.Now())
		if err := m.save(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot write down which device plugins there are; after a restart pods will not wait for them")
		}
		var timer <-chan time.Time
		if next > 0 {
			timer = time.After(next)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.poke:
		case <-timer:
		}
	}
}

// changed tells whoever depends on the devices. The lock must not be held.
func (m *Manager) changed() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
	if m.cfg.Changed != nil {
		m.cfg.Changed()
	}
}

// forget drops plugins that have been away for too long, and returns when the next one is due, zero if there is none.
func (m *Manager) forget(now time.Time) time.Duration {
	m.mu.Lock()
	var next time.Duration
	forgotten := false
	for name, of := range m.known {
		if of.since.IsZero() {
			continue
		}
		left := of.since.Add(Patience).Sub(now)
		if left <= 0 {
			delete(m.known, name)
			m.gone[name], forgotten = true, true
		} else if next == 0 || left < next {
			next = left
		}
	}
	m.mu.Unlock()
	if forgotten && m.cfg.Changed != nil {
		m.cfg.Changed()
	}
	return next
}

// save writes the names of the resources to the state file, if they have changed.
func (m *Manager) save() error {
	m.mu.Lock()
	names := slices.Sorted(maps.Keys(m.known))
	same := slices.Equal(names, m.saved)
	m.mu.Unlock()
	if same {
		return nil
	}
	data, err := json.Marshal(names)
	if err != nil {
		return err
	}
	if err := record.WriteFile(m.cfg.State, data, 0o600); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved = names
	return nil
}

// Resources returns how many devices there are of each resource, and how many of them are healthy.
func (m *Manager) Resources() (capacity, allocatable v1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = v1.ResourceList{}, v1.ResourceList{}
	set := func(name string, all, healthy int) {
		capacity[v1.ResourceName(name)] = *resource.NewQuantity(int64(all), resource.DecimalSI)
		allocatable[v1.ResourceName(name)] = *resource.NewQuantity(int64(healthy), resource.DecimalSI)
	}
	for name := range m.gone {
		set(name, 0, 0)
	}
	for name, of := range m.known {
		set(name, len(of.devices), len(of.healthy()))
	}
	return capacity, allocatable
}

// healthy returns the IDs of the devices that may be given, sorted.
func (of *inventory) healthy() []string {
	if !of.since.IsZero() {
		return nil
	}
	var out []string
	for id, d := range of.devices {
		if d.Health == pluginapi.Healthy {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Health returns the health of devices that a pod has, by resource and ID: Unknown if no plugin speaks for them yet.
func (m *Manager) Health(of podplan.Devices) map[string]map[string]v1.ResourceHealthStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]map[string]v1.ResourceHealthStatus{}
	for _, grants := range of {
		for _, g := range grants {
			if out[g.Resource] == nil {
				out[g.Resource] = map[string]v1.ResourceHealthStatus{}
			}
			for _, id := range g.IDs {
				out[g.Resource][id] = m.known[g.Resource].health(id)
			}
		}
	}
	return out
}

func (of *inventory) health(id string) v1.ResourceHealthStatus {
	switch {
	case of == nil || of.plugin == nil || of.devices[id] == nil:
		return v1.ResourceHealthStatusUnknown
	case of.since.IsZero() && of.devices[id].Health == pluginapi.Healthy:
		return v1.ResourceHealthStatusHealthy
	default:
		return v1.ResourceHealthStatusUnhealthy
	}
}

// Device is one device of a plugin.
type Device struct {
	ID      string
	Healthy bool
	// Nodes are the NUMA nodes that it is near.
	Nodes []int64
}

// Devices returns all devices of each resource, those that are unhealthy too, sorted by their IDs.
func (m *Manager) Devices() map[string][]Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]Device{}
	for name, of := range m.known {
		for _, id := range slices.Sorted(maps.Keys(of.devices)) {
			d := Device{ID: id, Healthy: of.since.IsZero() && of.devices[id].Health == pluginapi.Healthy}
			for _, n := range of.devices[id].GetTopology().GetNodes() {
				d.Nodes = append(d.Nodes, n.GetID())
			}
			out[name] = append(out[name], d)
		}
	}
	return out
}

// socket is where a plugin serves that registered with an endpoint. It must be in the folder: a plugin can have no other
// pod's sockets dialled.
func (m *Manager) socket(endpoint string) (string, error) {
	if endpoint == "" || endpoint != filepath.Base(endpoint) || endpoint == filepath.Base(pluginapi.KubeletSocket) || endpoint == "." || endpoint == ".." {
		return "", fmt.Errorf("endpoint %q is not the name of a socket in %s", endpoint, m.cfg.Dir)
	}
	return filepath.Join(m.cfg.Dir, endpoint), nil
}
