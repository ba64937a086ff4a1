package csi

import (
	"context"
	"math"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Refresh asks a driver again how many volumes the node can have, and tells the cluster.
func (d *Drivers) Refresh(ctx context.Context, name string) error {
	info, err := d.info(ctx, name)
	if err != nil || d.Update == nil {
		return err
	}
	return d.Update(ctx, name, info)
}

func (d *Drivers) info(ctx context.Context, name string) (info *spec.NodeGetInfoResponse, err error) {
	err = d.Call(ctx, name, func(ctx context.Context, c spec.NodeClient) (err error) {
		info, err = c.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
		return err
	})
	return info, err
}

// RefreshPeriod is how often a driver wants to be asked for the number of its volumes (KEP-4876); 0 is never.
func RefreshPeriod(d *storagev1.CSIDriver) time.Duration {
	if d == nil {
		return 0
	}
	const longest = math.MaxInt64 / int64(time.Second) // the API has no limit of its own
	return time.Duration(min(ptr.Deref(d.Spec.NodeAllocatableUpdatePeriodSeconds, 0), longest)) * time.Second
}

// FollowLimits refreshes the drivers that are there as often as their CSIDrivers say, until ctx ends. CSIDrivers are not
// watched before the node has its first driver.
func (d *Drivers) FollowLimits(ctx context.Context, client kubernetes.Interface) error {
	changed := make(chan struct{}, 1)
	changes := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	d.notify(changes)
	defer d.notify(nil)
	for len(d.Names()) == 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	all := informers.NewSharedInformerFactory(client, 0)
	drivers := all.Storage().V1().CSIDrivers()
	_, err := drivers.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changes() }, UpdateFunc: func(any, any) { changes() }, DeleteFunc: func(any) { changes() },
	})
	if err != nil {
		return err
	}
	all.Start(ctx.Done())
	defer all.Shutdown()
	f := followers{drivers: d, each: map[string]follower{}}
	defer f.running.Wait() // they end with ctx
	for {
		f.follow(ctx, periods(drivers.Lister(), d.Names()))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// periods returns how often drivers are to be asked; those that never are, are left out.
func periods(lister storagelisters.CSIDriverLister, names []string) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, name := range names {
		object, err := lister.Get(name)
		if err != nil {
			continue // not there, or not yet
		}
		if period := RefreshPeriod(object); period > 0 {
			out[name] = period
		}
	}
	return out
}

// followers are what asks each driver.
type followers struct {
	drivers *Drivers
	each    map[string]follower
	running sync.WaitGroup
}

type follower struct {
	period time.Duration
	stop   context.CancelFunc
}

// follow makes it so that each driver is asked in its period, and no others are.
func (f *followers) follow(ctx context.Context, want map[string]time.Duration) {
	for name, have := range f.each {
		if want[name] != have.period {
			have.stop()
			delete(f.each, name)
		}
	}
	for name, period := range want {
		if _, ok := f.each[name]; ok {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		f.each[name] = follower{period, stop}
		f.running.Go(func() { f.drivers.refreshEvery(ctx, name, period) })
	}
}

func (d *Drivers) refreshEvery(ctx context.Context, name string, period time.Duration) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := d.Refresh(ctx, name); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot tell how many volumes of a CSI driver the node can have", "driver", name)
		}
	}
}
