package daemon

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	componentconfig "k8s.io/component-base/config"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/component"
	"wherry.dev/internal/controller/manager"
)

// With several servers one at a time leads: it has the scheduler and the controllers. The leases have upstream's names, so
// that whoever runs one of the two alone takes its turn, too. A leader that dies is followed within five seconds.
var controllersLease = lease{"kube-controller-manager", 4 * time.Second, 3 * time.Second, 800 * time.Millisecond}

// schedulerLease is held by whoever holds the other one, and ends with it (takeOver): it has upstream's times, which cost less.
var schedulerLease = lease{"kube-scheduler", 15 * time.Second, 10 * time.Second, 2 * time.Second}

// lease says who leads.
type lease struct {
	name                   string
	duration, renew, retry time.Duration
}

// leadAgain is the pause after a term that ended with an error.
const leadAgain = time.Second

// whileLeading runs a component while this server holds a lease, again and again.
func (d *Daemon) whileLeading(ctx context.Context, user string, l lease, seen func(string), run func(context.Context) error) error {
	_, cfg, err := d.as(user)
	if err != nil {
		return err
	}
	election := componentconfig.LeaderElectionConfiguration{
		LeaderElect: true, ResourceLock: "leases", ResourceNamespace: metav1.NamespaceSystem, ResourceName: l.name,
		LeaseDuration: metav1.Duration{Duration: l.duration}, RenewDeadline: metav1.Duration{Duration: l.renew},
		RetryPeriod: metav1.Duration{Duration: l.retry},
	}
	for {
		err := component.Lead(ctx, cfg, election, d.identity, seen, run)
		if ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Error(err, "This server does not lead any more", "lease", l.name)
		if !pause(ctx, leadAgain) {
			return nil
		}
	}
}

// lead has the leading parts while this server leads. Each term begins anew, with informers of its own: a server that does
// not lead has no copies of what only the leader looks at.
func (d *Daemon) lead(ctx context.Context) error {
	var before atomic.Pointer[string] // who led before this server
	seen := func(leader string) {
		if leader != d.identity {
			before.Store(&leader)
		}
	}
	return d.whileLeading(ctx, controllerUser, controllersLease, seen, func(ctx context.Context) error {
		if last := before.Load(); last != nil {
			d.takeOver(ctx, *last)
		}
		klog.FromContext(ctx).Info("This server leads")
		reader, err := d.reader()
		if err != nil {
			return err
		}
		f := manager.NewInformers(reader)
		all, err := d.makeParts(ctx, f, func(p part) bool { return p.leads })
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		f.Start(gctx.Done())
		for _, s := range all {
			g.Go(func() error {
				err := s.run(klog.NewContext(gctx, klog.FromContext(ctx).WithName(s.name)))
				if err == nil && gctx.Err() == nil {
					err = errors.New(s.name + " stopped unexpectedly")
				}
				return err
			})
		}
		err = g.Wait()
		f.Shutdown()
		d.scheduler.Store(nil)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil
		}
		return err
	})
}

// takeOver ends the lease of the scheduler of a server that led before this one, and does not any more: its scheduler has ended
// with its term, and need not be waited for.
func (d *Daemon) takeOver(ctx context.Context, last string) {
	client, _, err := d.as(schedulerUser)
	if err == nil {
		leases := client.CoordinationV1().Leases(metav1.NamespaceSystem)
		var l *coordinationv1.Lease
		l, err = leases.Get(ctx, schedulerLease.name, metav1.GetOptions{})
		if err == nil && ptr.Deref(l.Spec.HolderIdentity, "") == last {
			l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = new(""), new(int32(1)) // as client-go releases one
			_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Info("The lease of the scheduler before this one has to end by itself", "holder", last, "err", err)
	}
}

// makeParts builds the parts of this instance's role that are wanted.
func (d *Daemon) makeParts(ctx context.Context, f informers.SharedInformerFactory, wanted func(part) bool) (all []service, err error) {
	for _, p := range parts {
		if !p.of(d.cfg.Role) || !wanted(p) {
			continue
		}
		made, err := p.make(d, ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, made...)
	}
	return all, nil
}
