package storage

import (
	"context"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// around wraps a call to etcd. size is the number of bytes that the call writes, 0 for a read.
type around func(ctx context.Context, size int, call func(context.Context) error) error

// aroundKV passes every call through around.
type aroundKV struct {
	clientv3.KV
	around around
	steady *steady // of an etcd that has other members; nil otherwise
}

// settle makes a call that does the same however often it is made, until it is known what has become of it.
func settle[T any](ctx context.Context, s *steady, around around, size int, f func(context.Context) (T, error)) (answer T, err error) {
	if s == nil {
		return through(ctx, around, size, f)
	}
	err = s.do(ctx, func(ctx context.Context) (err error) {
		answer, err = through(ctx, around, size, f)
		return err
	})
	return answer, err
}

func through[T any](ctx context.Context, around around, size int, f func(context.Context) (T, error)) (answer T, err error) {
	err = around(ctx, size, func(ctx context.Context) (err error) {
		answer, err = f(ctx)
		return err
	})
	return answer, err
}

// Put implements clientv3.KV.
func (k *aroundKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return settle(ctx, k.steady, k.around, len(key)+len(val), func(ctx context.Context) (*clientv3.PutResponse, error) { return k.KV.Put(ctx, key, val, opts...) })
}

// Get implements clientv3.KV.
func (k *aroundKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return settle(ctx, k.steady, k.around, 0, func(ctx context.Context) (*clientv3.GetResponse, error) { return k.KV.Get(ctx, key, opts...) })
}

// Delete implements clientv3.KV.
func (k *aroundKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return settle(ctx, k.steady, k.around, len(key), func(ctx context.Context) (*clientv3.DeleteResponse, error) { return k.KV.Delete(ctx, key, opts...) })
}

// Compact implements clientv3.KV. It has no size, because it only makes revisions outdated.
func (k *aroundKV) Compact(ctx context.Context, rev int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	return settle(ctx, k.steady, k.around, 0, func(ctx context.Context) (*clientv3.CompactResponse, error) { return k.KV.Compact(ctx, rev, opts...) })
}

// Txn implements clientv3.KV.
func (k *aroundKV) Txn(ctx context.Context) clientv3.Txn { return &aroundTxn{kv: k, ctx: ctx} }

// aroundTxn collects a transaction until Commit, because etcd's own takes its context at once.
type aroundTxn struct {
	kv              *aroundKV
	ctx             context.Context // of the one call
	cmps            []clientv3.Cmp
	then, otherwise []clientv3.Op
}

// If implements clientv3.Txn.
func (t *aroundTxn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	t.cmps = append(t.cmps, cmps...)
	return t
}

// Then implements clientv3.Txn.
func (t *aroundTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}

// Else implements clientv3.Txn.
func (t *aroundTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.otherwise = append(t.otherwise, ops...)
	return t
}

// Commit implements clientv3.Txn.
func (t *aroundTxn) Commit() (*clientv3.TxnResponse, error) {
	turn := minded(t.ctx)
	if turn == nil || !t.writes() {
		return t.commit(nil, t.then, t.otherwise)
	}
	return turn.told(t.commit(turn.others(), turn.leaving(t.then), turn.asking(t.otherwise)))
}

// writes reports whether the transaction is a write.
func (t *aroundTxn) writes() bool {
	return slices.ContainsFunc(t.then, func(op clientv3.Op) bool { return !op.IsGet() })
}

// commit makes the transaction, with more comparisons than its own, and other operations around its own.
func (t *aroundTxn) commit(more []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	size := 0
	for _, op := range slices.Concat(then, otherwise) {
		if !op.IsGet() {
			size += len(op.KeyBytes()) + len(op.ValueBytes())
		}
	}
	commit := func(ctx context.Context, cmps []clientv3.Cmp) (*clientv3.TxnResponse, error) {
		return through(ctx, t.kv.around, size, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return t.kv.KV.Txn(ctx).If(slices.Concat(cmps, more)...).Then(then...).Else(otherwise...).Commit()
		})
	}
	if s := t.kv.steady; s != nil {
		return s.commit(t.ctx, t, commit)
	}
	return commit(t.ctx, t.cmps)
}

// aroundLease passes every grant of a lease through around.
type aroundLease struct {
	clientv3.Lease
	around around
	steady *steady
}

// Grant implements clientv3.Lease.
func (l *aroundLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return settle(ctx, l.steady, l.around, leaseBytes, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) { return l.Lease.Grant(ctx, ttl) })
}

const leaseBytes = 32 // two numbers

// toldOfQuota is the around of an external cluster: when the cluster's database has reached its
// quota, it returns an error that says what to do.
func toldOfQuota(ctx context.Context, _ int, call func(context.Context) error) error {
	err := call(ctx)
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return insufficient("etcd (--etcd-servers) has reached its database quota and accepts only deletions "+
			"(without a grace period, of objects without finalizers): delete what is not needed, "+
			"then run wherry etcd compact and wherry etcd defrag, or etcdctl compact, defrag and alarm disarm; or start etcd with a larger --quota-backend-bytes (%v)", err)
	}
	return err
}
