package component

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	componentconfig "k8s.io/component-base/config"
)

// leases is a client of leases whose writes fail while it is cut off.
type leases struct {
	coordinationclient.CoordinationV1Interface
	off atomic.Bool
}

func (l *leases) Leases(namespace string) coordinationclient.LeaseInterface {
	return &lease{l.CoordinationV1Interface.Leases(namespace), l}
}

type lease struct {
	coordinationclient.LeaseInterface
	of *leases
}

func (l *lease) Update(ctx context.Context, obj *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	// The elector's own renewals only: it can still read, and would still give the lease back.
	if l.of.off.Load() && *obj.Spec.HolderIdentity != "" {
		return nil, errors.New("cut off")
	}
	return l.LeaseInterface.Update(ctx, obj, o)
}

var election = componentconfig.LeaderElectionConfiguration{
	ResourceNamespace: "kube-system", ResourceName: "test",
	LeaseDuration: metav1.Duration{Duration: 2 * time.Second}, RenewDeadline: metav1.Duration{Duration: 500 * time.Millisecond},
	RetryPeriod: metav1.Duration{Duration: 50 * time.Millisecond},
}

func lockOf(c coordinationclient.LeasesGetter, identity string) resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: election.ResourceNamespace, Name: election.ResourceName},
		Client:    c, LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
}

func holder(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	l, err := client.CoordinationV1().Leases("kube-system").Get(t.Context(), "test", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *l.Spec.HolderIdentity
}

// A leader that cannot renew its lease does not give it to another one while its own work goes on.
func TestALostLeaseIsNotGivenBack(t *testing.T) {
	client := fake.NewClientset()
	cut := &leases{CoordinationV1Interface: client.CoordinationV1()}
	began, finish := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- lead(t.Context(), lockOf(cut, "a"), election, nil, func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			<-finish // it takes a while to stop
			return nil
		})
	}()
	<-began
	cut.off.Store(true)
	time.Sleep(1500 * time.Millisecond) // it has lost the lease by then, and is stopping
	if got := holder(t, client); got != "a" {
		t.Errorf("the lease is %q's while a is still at work", got)
	}
	close(finish)
	if err := <-done; err == nil {
		t.Error("losing the lease is no error")
	}
}

// Nor does it take it from the one that has it by then.
func TestALeaseOfAnotherIsLeftAlone(t *testing.T) {
	client := fake.NewClientset()
	lock := &guarded{Interface: lockOf(client.CoordinationV1(), "a")}
	if err := lockOf(client.CoordinationV1(), "b").Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 4}); err != nil {
		t.Fatal(err)
	}
	lock.ended.Store(true)
	if _, _, err := lock.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}); err == nil || holder(t, client) != "b" {
		t.Errorf("it gives back the lease of %q: %v", holder(t, client), err)
	}
}

// A leader that is told to stop gives its lease back as soon as its work has ended.
func TestALeaseIsGivenBackAtTheEnd(t *testing.T) {
	client := fake.NewClientset()
	ctx, stop := context.WithCancel(t.Context())
	began, finish := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- lead(ctx, lockOf(client.CoordinationV1(), "a"), election, nil, func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			<-finish
			return nil
		})
	}()
	<-began
	stop()
	time.Sleep(100 * time.Millisecond)
	if got := holder(t, client); got != "a" {
		t.Errorf("the lease is %q's before its work has ended", got)
	}
	close(finish)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := holder(t, client); got != "" {
		t.Errorf("the lease is still %q's", got)
	}
}

// TestALeaseLastsAsLongAsItSays, after the last renewal, though there were several in that second: the next leader began up to a
// second too early.
func TestALeaseLastsAsLongAsItSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first := &leases{CoordinationV1Interface: client.CoordinationV1()}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		run := func(ctx context.Context) error { <-ctx.Done(); return nil }
		ended := make(chan error, 2)
		go func() { ended <- lead(ctx, lockOf(first, "a"), election, nil, run) }()
		time.Sleep(time.Second)
		began := make(chan time.Time, 1)
		go func() {
			ended <- lead(ctx, lockOf(client.CoordinationV1(), "b"), election, nil, func(ctx context.Context) error {
				began <- time.Now()
				return run(ctx)
			})
		}()
		time.Sleep(9*time.Second + 930*time.Millisecond - time.Duration(time.Now().Nanosecond()))
		first.off.Store(true)
		l, err := client.CoordinationV1().Leases("kube-system").Get(ctx, "test", metav1.GetOptions{})
		if err != nil || *l.Spec.HolderIdentity != "a" {
			t.Fatalf("%+v, %v", l, err)
		}
		at := <-began
		if after := at.Sub(l.Spec.RenewTime.Time); after < election.LeaseDuration.Duration || after > 2*election.LeaseDuration.Duration {
			t.Errorf("the other one leads %s after the last renewal, of a lease of %s", after, election.LeaseDuration.Duration)
		}
		cancel()
		if err := errors.Join(<-ended, <-ended); err == nil || !strings.Contains(err.Error(), "was lost") {
			t.Error(err) // the first one's
		}
	})
}
