// Package csi knows the CSI drivers of the node: those that have registered with the kubelet. It calls them (CSI v1),
// and tells the API server which there are. What volumes need of a driver is in package volume.
//
// Of a driver, only its name and its socket are remembered. Each call has a connection of its own, so that nothing is
// left of a driver that died, and nothing is kept open for one that has nothing to do.
package csi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/util/version"

	"wherry.dev/internal/kubelet/plugins"
)

// callTime is how long a driver may take for one call, as upstream's csiTimeout.
const callTime = 2 * time.Minute

// Drivers are the node's drivers. They are a plugins.Handler.
type Drivers struct {
	// Install tells the cluster of a driver, Update what has become of it, Uninstall that it is no longer there; nil if there
	// is no cluster.
	Install   func(ctx context.Context, driver string, info *spec.NodeGetInfoResponse) error
	Update    func(ctx context.Context, driver string, info *spec.NodeGetInfoResponse) error
	Uninstall func(ctx context.Context, driver string) error
	// Came, if not nil, is called with the name of a driver that has registered.
	Came func(driver string)

	mu     sync.Mutex
	byName map[string]driver
	// changed, if not nil, is called when a driver has come or gone.
	changed func()
}

type driver struct {
	endpoint string
	highest  *version.Version
}

var _ plugins.Handler = (*Drivers)(nil)

// Register implements plugins.Handler. The driver can be called when it is told that it is registered, and by pods
// before that.
func (d *Drivers) Register(ctx context.Context, p plugins.Plugin) error {
	if err := d.add(p); err != nil {
		return err
	}
	if err := d.introduce(ctx, p.Name); err != nil {
		d.remove(p)
		return err
	}
	if d.Came != nil {
		d.Came(p.Name)
	}
	d.tell()
	return nil
}

// notify has changed called when a driver has come or gone.
func (d *Drivers) notify(changed func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed = changed
}

func (d *Drivers) tell() {
	d.mu.Lock()
	changed := d.changed
	d.mu.Unlock()
	if changed != nil {
		changed()
	}
}

func (d *Drivers) introduce(ctx context.Context, name string) error {
	info, err := d.info(ctx, name)
	if err != nil || d.Install == nil {
		return err
	}
	return d.Install(ctx, name, info)
}

// add remembers a driver, unless there is one of its name that is as new.
func (d *Drivers) add(p plugins.Plugin) error {
	highest, err := highestVersion(p)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if have, ok := d.byName[p.Name]; ok && !have.highest.LessThan(highest) {
		return fmt.Errorf("kubernetes.io/csi: RegisterPlugin for CSI driver %q failed. "+
			"Another driver with the same name is already registered with a higher supported version: %q", p.Name, have.highest)
	}
	if d.byName == nil {
		d.byName = map[string]driver{}
	}
	d.byName[p.Name] = driver{p.Endpoint, highest}
	return nil
}

// highestVersion returns the newest version of CSI that a driver has and that we speak, which is any of v1.
func highestVersion(p plugins.Plugin) (*version.Version, error) {
	if len(p.Versions) == 0 {
		return nil, fmt.Errorf("kubernetes.io/csi: RegisterPlugin for CSI driver %q failed. "+
			"Plugin returned an empty list for supported versions", p.Name)
	}
	var highest *version.Version
	for _, s := range p.Versions {
		v, err := version.ParseGeneric(s)
		if err == nil && v.Major() == 1 && (highest == nil || highest.LessThan(v)) {
			highest = v
		}
	}
	if highest == nil {
		return nil, fmt.Errorf("kubernetes.io/csi: RegisterPlugin for CSI driver %q failed. "+
			"None of the versions specified %q are supported", p.Name, p.Versions)
	}
	return highest, nil
}

// remove forgets a driver, unless another one has taken its name; it reports whether it did.
func (d *Drivers) remove(p plugins.Plugin) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byName[p.Name].endpoint != p.Endpoint {
		return false
	}
	delete(d.byName, p.Name)
	return true
}

// Deregister implements plugins.Handler.
func (d *Drivers) Deregister(ctx context.Context, p plugins.Plugin) error {
	if !d.remove(p) {
		return nil
	}
	d.tell()
	if d.Uninstall == nil {
		return nil
	}
	return d.Uninstall(ctx, p.Name)
}

// Call calls a driver. It returns soon after the context ends, however long the driver takes.
func (d *Drivers) Call(ctx context.Context, name string, f func(ctx context.Context, c spec.NodeClient) error) error {
	d.mu.Lock()
	have, ok := d.byName[name]
	d.mu.Unlock()
	if !ok {
		return &NotRegisteredError{name}
	}
	conn, err := plugins.Dial(have.endpoint)
	if err != nil {
		return fmt.Errorf("connect to CSI driver %s: %w", name, err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return f(ctx, spec.NewNodeClient(conn))
}

// Names returns the names of the drivers that are there.
func (d *Drivers) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.byName))
}

// NotRegisteredError means that a driver is not on the node, or not yet.
type NotRegisteredError struct{ Driver string }

func (e *NotRegisteredError) Error() string {
	return fmt.Sprintf("driver name %s not found in the list of registered CSI drivers", e.Driver)
}

// Abilities are what a driver can do on a node.
type Abilities map[spec.NodeServiceCapability_RPC_Type]bool

// Can asks a driver what it can do.
func Can(ctx context.Context, c spec.NodeClient) (Abilities, error) {
	resp, err := c.NodeGetCapabilities(ctx, &spec.NodeGetCapabilitiesRequest{})
	if err != nil {
		return nil, err
	}
	out := Abilities{}
	for _, one := range resp.GetCapabilities() {
		out[one.GetRpc().GetType()] = true
	}
	return out, nil
}
