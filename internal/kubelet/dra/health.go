package dra

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"wherry.dev/internal/api/pods"
)

const (
	// healthTime is for how long what a driver says of a device's health holds, unless it says so itself (as upstream's).
	healthTime = 30 * time.Second
	// watchAgain is after how long a driver is asked again that has ended its stream.
	watchAgain = 5 * time.Second
)

// health is what a driver last said of a device.
type health struct {
	status  v1.ResourceHealthStatus
	message string
	until   time.Time
}

// device names a device of a driver.
type device struct{ pool, name string }

// watchHealth follows what the driver says of its devices' health, if it does, until ctx ends.
func (d *Drivers) watchHealth(ctx context.Context, in *instance) {
	var client healthv1.DRAResourceHealthClient
	switch {
	case slices.Contains(in.plugin.Versions, healthv1.DRAResourceHealthService):
		client = healthv1.NewDRAResourceHealthClient(in.conn)
	case slices.Contains(in.plugin.Versions, healthv1alpha1.DRAResourceHealthService):
		client = healthv1.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(in.conn)}
	default:
		return
	}
	log := klog.FromContext(ctx).WithValues("driver", in.plugin.Name)
	for {
		stream, err := client.NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
		for err == nil {
			var all *healthv1.NodeWatchResourcesResponse
			if all, err = stream.Recv(); err == nil {
				d.noteHealth(in, all, time.Now())
			}
		}
		if ctx.Err() != nil {
			return
		}
		log.V(2).Info("A DRA driver does not tell of its devices' health any more, will ask again", "err", err)
		select {
		case <-time.After(watchAgain):
		case <-ctx.Done():
			return
		}
	}
}

// noteHealth notes what a driver says of all its devices. What it does not mention gets unknown when its time is over.
func (d *Drivers) noteHealth(in *instance, all *healthv1.NodeWatchResourcesResponse, now time.Time) {
	d.mu.Lock()
	if in.health == nil {
		in.health = map[device]health{}
	}
	changed := false
	for _, one := range all.GetDevices() {
		id := device{one.GetDevice().GetPoolName(), one.GetDevice().GetDeviceName()}
		holds := healthTime
		if s := one.GetHealthCheckTimeoutSeconds(); s > 0 {
			holds = time.Duration(s) * time.Second
		}
		is := health{v1.ResourceHealthStatusUnknown, pods.Shorten(one.GetMessage(), pods.MaxHealthMessage), now.Add(holds)}
		switch one.GetHealth() {
		case healthv1.HealthStatus_HEALTHY:
			is.status = v1.ResourceHealthStatusHealthy
		case healthv1.HealthStatus_UNHEALTHY:
			is.status = v1.ResourceHealthStatusUnhealthy
		}
		was := in.healthOf(id, now)
		changed = changed || was.status != is.status || was.message != is.message
		in.health[id] = is
	}
	d.expireLocked(in, now)
	d.mu.Unlock()
	if changed && d.HealthChanged != nil {
		d.HealthChanged(in.plugin.Name)
	}
}

func (in *instance) healthOf(id device, now time.Time) health {
	if h, ok := in.health[id]; ok && now.Before(h.until) {
		return h
	}
	return health{status: v1.ResourceHealthStatusUnknown}
}

// expireLocked has it told when the next device gets unknown.
func (d *Drivers) expireLocked(in *instance, now time.Time) {
	var next time.Time
	for id, h := range in.health {
		switch {
		case !now.Before(h.until):
			delete(in.health, id)
		case next.IsZero() || h.until.Before(next):
			next = h.until
		}
	}
	if in.expiry != nil {
		in.expiry.Stop()
	}
	if next.IsZero() {
		return
	}
	in.expiry = time.AfterFunc(next.Sub(now), func() {
		d.mu.Lock()
		d.expireLocked(in, time.Now())
		d.mu.Unlock()
		if d.HealthChanged != nil {
			d.HealthChanged(in.plugin.Name)
		}
	})
}

// health returns what the newest instance of a driver that knows a device says; else, what one says that does not.
func (d *Drivers) health(driver string, id device) health {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	out := health{status: v1.ResourceHealthStatusUnknown}
	for _, in := range slices.Backward(d.byName[driver]) {
		h := in.healthOf(id, now)
		if h.status != v1.ResourceHealthStatusUnknown {
			return h
		}
		if out.message == "" {
			out = h
		}
	}
	return out
}

// Health returns the health of the devices that each of the pod's containers has by claims, as the pod's status tells it
// (KEP-4680); nothing of those that are not prepared.
func (m *Manager) Health(pod *v1.Pod) map[string][]v1.ResourceStatus {
	out := map[string][]v1.ResourceStatus{}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for _, ref := range c.Resources.Claims {
			given, err := m.Given(pod, &v1.Container{Name: "", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{ref}}})
			if err != nil {
				continue // not prepared; whoever prepares it tells why
			}
			st := v1.ResourceStatus{Name: v1.ResourceName("claim:" + ref.Name)}
			if ref.Request != "" {
				st.Name += v1.ResourceName("/" + ref.Request)
			}
			for _, g := range given {
				for _, d := range g.Devices {
					id := v1.ResourceID(d.Driver + "/" + d.Pool + "/" + d.Name)
					if len(d.CDI) > 0 {
						id = v1.ResourceID(d.CDI[0])
					}
					if !slices.ContainsFunc(st.Resources, func(h v1.ResourceHealth) bool { return h.ResourceID == id }) {
						st.Resources = append(st.Resources, m.health(d.Driver, device{d.Pool, d.Name}).of(id))
					}
				}
			}
			if len(st.Resources) > 0 {
				out[c.Name] = append(out[c.Name], st)
			}
		}
	}
	return out
}

func (h health) of(id v1.ResourceID) v1.ResourceHealth {
	out := v1.ResourceHealth{ResourceID: id, Health: h.status}
	if h.message != "" {
		out.Message = &h.message
	}
	return out
}

// healthChanged has the pods that have devices of a driver look at their health.
func (m *Manager) healthChanged(driver string) {
	if m.Look == nil {
		return
	}
	uids, err := m.all()
	if err != nil {
		klog.Background().Error(err, "Cannot tell which pods have devices whose health has changed", "driver", driver)
		return
	}
	told := map[types.UID]bool{}
	for _, uid := range uids {
		c, err := m.read(uid)
		if err != nil {
			klog.Background().Error(err, "Cannot tell whose devices have changed their health", "driver", driver)
		}
		if err != nil || c == nil || c.Drivers[driver] == nil {
			continue
		}
		for _, pod := range c.Pods {
			if !told[pod] {
				told[pod] = true
				m.Look(pod)
			}
		}
	}
}
