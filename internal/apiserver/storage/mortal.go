package storage

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// mortalKV answers at once when the server behind it fails or has failed, where etcd's
// own client would wait out its deadline.
type mortalKV struct {
	clientv3.KV
	end *fatality
}

func unavailable(reason error) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("the cluster's data is not to be had: etcd has stopped: %v", reason))
}

// whileAlive calls f with a context that also ends when the server fails.
func whileAlive[T any](ctx context.Context, end *fatality, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(end.ctx, cancel)() //nolint:contextcheck // the end of the server, not of a request
	answer, err := f(ctx)
	if reason := end.err(); err != nil && reason != nil {
		err = unavailable(reason)
	}
	return answer, err
}

// Put implements clientv3.KV.
func (m *mortalKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return whileAlive(ctx, m.end, func(ctx context.Context) (*clientv3.PutResponse, error) { return m.KV.Put(ctx, key, val, opts...) })
}

// Get implements clientv3.KV.
func (m *mortalKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return whileAlive(ctx, m.end, func(ctx context.Context) (*clientv3.GetResponse, error) { return m.KV.Get(ctx, key, opts...) })
}

// Delete implements clientv3.KV.
func (m *mortalKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return whileAlive(ctx, m.end, func(ctx context.Context) (*clientv3.DeleteResponse, error) { return m.KV.Delete(ctx, key, opts...) })
}

// Txn implements clientv3.KV.
func (m *mortalKV) Txn(ctx context.Context) clientv3.Txn { return &mortalTxn{kv: m, ctx: ctx} }

// mortalTxn collects a transaction, for etcd's own takes its context at once.
type mortalTxn struct {
	kv              *mortalKV
	ctx             context.Context // of the one call
	cmps            []clientv3.Cmp
	then, otherwise []clientv3.Op
}

// If implements clientv3.Txn.
func (t *mortalTxn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	t.cmps = append(t.cmps, cmps...)
	return t
}

// Then implements clientv3.Txn.
func (t *mortalTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}

// Else implements clientv3.Txn.
func (t *mortalTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.otherwise = append(t.otherwise, ops...)
	return t
}

// Commit implements clientv3.Txn.
func (t *mortalTxn) Commit() (*clientv3.TxnResponse, error) {
	return whileAlive(t.ctx, t.kv.end, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return t.kv.KV.Txn(ctx).If(t.cmps...).Then(t.then...).Else(t.otherwise...).Commit()
	})
}
