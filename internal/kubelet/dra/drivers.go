// Package dra prepares the devices that pods have by ResourceClaims (dynamic resource allocation, KEP-4381).
//
// A driver registers in the kubelet's folder of plugins (drivers.go). Before a pod's sandbox is made, the drivers of its
// claims are asked to prepare them, and say which CDI devices the containers get; when nothing of the pod runs any more,
// and no other pod on the node uses a claim, they are asked to take that back (claims.go). What may be prepared is on the
// disk before a driver is called, and until it has said that it is not: a file for each claim. Nothing else is
// remembered, so that a kubelet that is killed goes on where it was.
//
// While a driver is away nobody should be sent to the node for its devices: what it has told the cluster of them goes
// when it does not come back soon (slices.go).
package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"wherry.dev/internal/kubelet/plugins"
)

const (
	// callTime is how long a driver may take for one call, as upstream's.
	callTime = 45 * time.Second
	// reconnect is how long the wait between two attempts to reach a driver may become.
	reconnect = 5 * time.Second
)

// services are what a driver may serve, the best one first.
var services = []string{drav1.DRAPluginService, drav1beta1.DRAPluginService}

// Drivers are the node's drivers. They are a plugins.Handler. A driver may be there several times while it is updated:
// the last one that registered and can be reached counts.
type Drivers struct {
	// Changed, if not nil, is called with the name of a driver that has come, or gone. It must not call Drivers.
	Changed func(driver string, there bool)
	// HealthChanged, if not nil, is called with the name of a driver whose devices' health has changed.
	HealthChanged func(driver string)

	mu     sync.Mutex
	byName map[string][]*instance // in the order in which they registered
}

// instance is one process of a driver.
type instance struct {
	plugin  plugins.Plugin
	conn    *grpc.ClientConn
	service string
	leave   context.CancelFunc
	// Guarded by Drivers.mu:
	connected bool
	health    map[device]health
	expiry    *time.Timer // for the next of them that nobody has renewed
}

var _ plugins.Handler = (*Drivers)(nil)

// Register implements plugins.Handler.
func (d *Drivers) Register(ctx context.Context, p plugins.Plugin) error {
	i := slices.IndexFunc(services, func(s string) bool { return slices.Contains(p.Versions, s) })
	switch {
	case len(p.Versions) == 0:
		return fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %s at endpoint %s: empty list of supported gRPC services (aka supported versions)",
			p.Name, p.Endpoint)
	case i < 0:
		return fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %s at endpoint %s: none of services supported by the plugin (%q) are supported by the kubelet (%q)",
			p.Name, p.Endpoint, p.Versions, services)
	}
	conn, err := plugins.Dial(p.Endpoint,
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: reconnect}}))
	if err != nil {
		return fmt.Errorf("create gRPC connection to DRA driver %s plugin at endpoint %s: %w", p.Name, p.Endpoint, err)
	}
	watching, leave := context.WithCancel(context.WithoutCancel(ctx)) // the registration is over soon, the driver stays
	in := &instance{plugin: p, conn: conn, service: services[i], leave: leave, connected: true}
	d.mu.Lock()
	if slices.ContainsFunc(d.byName[p.Name], func(o *instance) bool { return o.plugin.Endpoint == p.Endpoint }) {
		d.mu.Unlock()
		leave()
		return errors.Join(fmt.Errorf("endpoint %s already registered for DRA driver plugin %s", p.Endpoint, p.Name), conn.Close())
	}
	if d.byName == nil {
		d.byName = map[string][]*instance{}
	}
	d.byName[p.Name] = append(d.byName[p.Name], in)
	d.mu.Unlock()
	go d.follow(watching, in)
	go d.watchHealth(watching, in)
	d.tell(p.Name)
	return nil
}

// follow notes whether the driver can be reached, until it is deregistered. A process that died leaves its socket behind.
func (d *Drivers) follow(ctx context.Context, in *instance) {
	was := false
	for state := in.conn.GetState(); ; state = in.conn.GetState() {
		switch state {
		case connectivity.Idle:
			if was {
				d.note(in, false)
			}
			in.conn.Connect()
		case connectivity.Ready:
			was = true
			d.note(in, true)
		case connectivity.TransientFailure:
			d.note(in, false)
		case connectivity.Shutdown:
			return
		}
		if !in.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

func (d *Drivers) note(in *instance, connected bool) {
	d.mu.Lock()
	changed := in.connected != connected
	in.connected = connected
	d.mu.Unlock()
	if changed {
		d.tell(in.plugin.Name)
	}
}

func (d *Drivers) tell(name string) {
	if d.Changed != nil {
		d.Changed(name, d.Connected(name))
	}
}

// Connected reports whether the driver is there.
func (d *Drivers) Connected(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.byName[name], func(in *instance) bool { return in.connected })
}

// connected returns the names of the drivers that are there.
func (d *Drivers) connected() sets.Set[string] {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := sets.New[string]()
	for name, all := range d.byName {
		if slices.ContainsFunc(all, func(in *instance) bool { return in.connected }) {
			out.Insert(name)
		}
	}
	return out
}

// Deregister implements plugins.Handler.
func (d *Drivers) Deregister(_ context.Context, p plugins.Plugin) error {
	d.mu.Lock()
	var gone *instance
	d.byName[p.Name] = slices.DeleteFunc(d.byName[p.Name], func(in *instance) bool {
		if in.plugin.Endpoint != p.Endpoint {
			return false
		}
		gone = in
		return true
	})
	if len(d.byName[p.Name]) == 0 {
		delete(d.byName, p.Name)
	}
	if gone != nil && gone.expiry != nil {
		gone.expiry.Stop()
		gone.health = nil
	}
	d.mu.Unlock()
	if gone == nil {
		return nil
	}
	err := gone.close()
	d.tell(p.Name)
	if d.HealthChanged != nil {
		d.HealthChanged(p.Name)
	}
	return err
}

func (in *instance) close() error {
	in.leave()
	return in.conn.Close()
}

// Close ends all connections, when nobody calls drivers any more.
func (d *Drivers) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, all := range d.byName {
		for _, in := range all {
			errs = append(errs, in.close())
			if in.expiry != nil {
				in.expiry.Stop()
			}
		}
	}
	d.byName = nil
	return errors.Join(errs...)
}

// NotRegisteredError means that a driver is not on the node, or not yet.
type NotRegisteredError struct{ Driver string }

func (e *NotRegisteredError) Error() string {
	return fmt.Sprintf("DRA driver %s is not registered", e.Driver)
}

// get returns the instance of a driver that is to be called.
func (d *Drivers) get(name string) (*instance, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.byName[name]
	for _, in := range slices.Backward(all) {
		if in.connected {
			return in, nil
		}
	}
	if len(all) == 0 {
		return nil, &NotRegisteredError{name}
	}
	return all[len(all)-1], nil
}

// prepare and unprepare return what the driver says of each claim, by its UID.
func (in *instance) prepare(ctx context.Context, claims []*drav1.Claim) (map[string]*drav1.NodePrepareResourceResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	ask := &drav1.NodePrepareResourcesRequest{Claims: claims}
	answer, err := timed("NodePrepareResources", in, func() (*drav1.NodePrepareResourcesResponse, error) {
		if in.service == drav1.DRAPluginService {
			return drav1.NewDRAPluginClient(in.conn).NodePrepareResources(ctx, ask)
		}
		return drav1beta1.V1Beta1ServerWrapper{DRAPluginServer: older{conn: in.conn}}.NodePrepareResources(ctx, ask)
	})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources: %w", err)
	}
	return answer.GetClaims(), nil
}

func (in *instance) unprepare(ctx context.Context, claims []*drav1.Claim) (map[string]*drav1.NodeUnprepareResourceResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	ask := &drav1.NodeUnprepareResourcesRequest{Claims: claims}
	answer, err := timed("NodeUnprepareResources", in, func() (*drav1.NodeUnprepareResourcesResponse, error) {
		if in.service == drav1.DRAPluginService {
			return drav1.NewDRAPluginClient(in.conn).NodeUnprepareResources(ctx, ask)
		}
		return drav1beta1.V1Beta1ServerWrapper{DRAPluginServer: older{conn: in.conn}}.NodeUnprepareResources(ctx, ask)
	})
	if err != nil {
		return nil, fmt.Errorf("NodeUnprepareResources: %w", err)
	}
	return answer.GetClaims(), nil
}

// timed measures a call.
func timed[T any](method string, in *instance, call func() (T, error)) (T, error) {
	began := time.Now()
	answer, err := call()
	observeCall(in.plugin.Name, method, err, time.Since(began))
	if err != nil {
		klog.Background().V(2).Info("A call of a DRA driver failed", "driver", in.plugin.Name, "method", method, "err", err)
	}
	return answer, err
}

// older is a driver that serves v1beta1.
type older struct {
	drav1beta1.UnsafeDRAPluginServer
	conn *grpc.ClientConn
}

func (o older) NodePrepareResources(ctx context.Context, r *drav1beta1.NodePrepareResourcesRequest) (*drav1beta1.NodePrepareResourcesResponse, error) {
	return drav1beta1.NewDRAPluginClient(o.conn).NodePrepareResources(ctx, r)
}

func (o older) NodeUnprepareResources(ctx context.Context, r *drav1beta1.NodeUnprepareResourcesRequest) (*drav1beta1.NodeUnprepareResourcesResponse, error) {
	return drav1beta1.NewDRAPluginClient(o.conn).NodeUnprepareResources(ctx, r)
}
