package component

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	componentconfig "k8s.io/component-base/config"
)

// Run runs a component, and tells systemd when it is ready: with leader election while this process holds the
// lease (one that waits for it is ready, too), or else at once.
func Run(ctx context.Context, cfg *rest.Config, c componentconfig.LeaderElectionConfiguration, ready <-chan struct{}, run func(context.Context) error) error {
	if !c.LeaderElect {
		return Notify(ctx, ready, run)
	}
	waiting := make(chan struct{})
	close(waiting)
	return Notify(ctx, waiting, func(ctx context.Context) error {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		return Lead(ctx, cfg, c, host+"_"+string(uuid.NewUUID()), nil, run)
	})
}

// Lead runs a component while this process holds the lease. When ctx ends it gives the lease back,
// once the component has ended. Losing the lease is an error: the component must not keep running
// next to the new leader. identity says who holds the lease then; seen, if not nil, is told whoever does.
func Lead(ctx context.Context, cfg *rest.Config, c componentconfig.LeaderElectionConfiguration, identity string, seen func(string), run func(context.Context) error) error {
	cfg = rest.CopyConfig(cfg)
	lock, err := resourcelock.NewFromKubeconfig(c.ResourceLock, c.ResourceNamespace, c.ResourceName,
		resourcelock.ResourceLockConfig{Identity: identity}, cfg, c.RenewDeadline.Duration)
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	return lead(ctx, lock, c, seen, run)
}

// guarded is the lock of a lease that is given back only when nothing runs under it any more, and only if it is still ours.
// client-go's elector gives a lease back, too, when it could not renew it in time: while what it guards is still running,
// and whoever holds it by then.
type guarded struct {
	resourcelock.Interface
	ended  atomic.Bool  // what ran under the lease has ended
	holder atomic.Value // string: who holds it, as of the last Get
}

var errNotGivenBack = errors.New("it ends by itself")

// Get implements resourcelock.Interface. The elector takes a lease for renewed when the raw record has changed, which tells
// times to the second: of two renewals in one second it would miss the second one, and take the lease too early by that.
func (g *guarded) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := g.Interface.Get(ctx)
	if err != nil {
		return record, raw, err
	}
	g.holder.Store(record.HolderIdentity)
	return record, record.RenewTime.AppendFormat(slices.Clip(raw), time.RFC3339Nano), nil
}

// Update implements resourcelock.Interface.
func (g *guarded) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && (!g.ended.Load() || g.holder.Load() != g.Identity()) {
		return errNotGivenBack
	}
	return g.Interface.Update(ctx, record)
}

func lead(ctx context.Context, inner resourcelock.Interface, c componentconfig.LeaderElectionConfiguration, seen func(string), run func(context.Context) error) error {
	lock := &guarded{Interface: inner}
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	var leads atomic.Bool
	ended := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   c.LeaseDuration.Duration,
		RenewDeadline:   c.RenewDeadline.Duration,
		RetryPeriod:     c.RetryPeriod.Duration,
		ReleaseOnCancel: true,
		Name:            c.ResourceName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				leads.Store(true)
				running, stop := context.WithCancel(ctx)
				defer stop()
				defer context.AfterFunc(leading, stop)()
				err := run(running)
				lock.ended.Store(true)
				ended <- err
				stopElecting()
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      seen,
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		if !leads.Load() {
			stopElecting()
		}
	})()
	elector.Run(electing)
	if electing.Err() == nil {
		return errors.Join(fmt.Errorf("the lease %s/%s was lost", c.ResourceNamespace, c.ResourceName), <-ended)
	}
	select {
	case err := <-ended:
		return err
	default: // told to stop before it led
		return nil
	}
}
