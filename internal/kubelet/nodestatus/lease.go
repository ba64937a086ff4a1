package nodestatus

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// RunLease renews the node's lease until the context ends.
func (r *Reporter) RunLease(ctx context.Context) error {
	if r.client == nil {
		return nil
	}
	log := klog.FromContext(ctx)
	const first, most = 100 * time.Millisecond, 7 * time.Second
	var lease *coordinationv1.Lease
	wait, owned := first, first
	for ctx.Err() == nil {
		next := r.leaseInterval()
		if r.cfg.Jitter != nil {
			next = r.cfg.Jitter(next)
		}
		got, err := r.renew(ctx, lease)
		if err != nil {
			if ctx.Err() == nil && wait > time.Second {
				log.Error(err, "Failed to renew the node lease, will retry")
			}
			lease, next = nil, min(wait, next)
			wait = min(wait*2, most)
		} else {
			lease, wait = got, first
			if len(lease.OwnerReferences) == 0 { // the node is not registered yet; a lease without an owner outlives it
				next, owned = min(owned, next), min(owned*2, most)
			}
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
	return nil
}

// renew writes the lease; without a base it first looks up the existing one.
func (r *Reporter) renew(ctx context.Context, base *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := r.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	if base == nil {
		got, err := leases.Get(ctx, r.cfg.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return leases.Create(ctx, r.stampLease(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Name, Namespace: v1.NamespaceNodeLease},
			}), metav1.CreateOptions{})
		}
		if err != nil {
			return nil, err
		}
		base = got
	}
	return leases.Update(ctx, r.stampLease(base.DeepCopy()), metav1.UpdateOptions{})
}

func (r *Reporter) stampLease(l *coordinationv1.Lease) *coordinationv1.Lease {
	now := metav1.NewMicroTime(time.Now())
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &r.cfg.Name, &r.cfg.LeaseSeconds, &now
	if n := r.node.Load(); n.UID != "" {
		l.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID,
		}}
	}
	return l
}
