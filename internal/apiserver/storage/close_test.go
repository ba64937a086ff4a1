package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// What a goroutine does again and again in TestCloseUnderCalls; n counts.
var underClose = []func(ctx context.Context, b *Backend, key string, n int) error{
	func(ctx context.Context, b *Backend, key string, n int) error {
		_, err := b.client.Put(ctx, key, strconv.Itoa(n))
		return err
	},
	func(ctx context.Context, b *Backend, key string, _ int) error {
		_, err := b.client.KV.Get(ctx, key)
		return err
	},
	func(ctx context.Context, b *Backend, _ string, _ int) error {
		_, err := b.client.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithSerializable())
		return err
	},
	func(ctx context.Context, b *Backend, _ string, _ int) error {
		_, err := b.Compact(ctx)
		return err
	},
	func(ctx context.Context, b *Backend, key string, _ int) error {
		_, _, err := b.Claim(ctx, key, "owner")
		return errors.Join(err, b.Release(ctx, key, "owner"))
	},
	func(ctx context.Context, b *Backend, _ string, _ int) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events := b.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(1))
		r, ok := <-events
		if !ok {
			return errClosed // a watch has no other words for it
		}
		if r.CompactRevision > 0 {
			return nil
		}
		return r.Err()
	},
	func(ctx context.Context, b *Backend, key string, _ int) error {
		l, err := b.client.Grant(ctx, 60)
		if err == nil {
			_, err = b.client.Put(ctx, key, "leased", clientv3.WithLease(l.ID))
		}
		return err
	},
	func(ctx context.Context, b *Backend, _ string, _ int) error {
		return b.Snapshot(ctx, discard{})
	},
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// A call that was still in etcd when it was closed read pages of the database that were not mapped any
// more, which ends the process. Now it finishes, or is told that etcd is closed; what was acknowledged is
// there afterwards.
func TestCloseUnderCalls(t *testing.T) {
	const rounds, goroutines, enough = 20, 16, 200
	dir := t.TempDir()
	b := open(t, dir)
	for round := range rounds {
		closed := b
		var running sync.WaitGroup
		var made atomic.Int64
		var closing atomic.Bool
		busy := make(chan struct{})
		acknowledged := make([]int, goroutines)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for i := range goroutines {
			key := fmt.Sprintf("%s/close/%d/%d", prefix, round, i)
			call := underClose[i%len(underClose)]
			running.Go(func() {
				for n := 1; ; n++ {
					err := call(ctx, closed, key, n)
					switch {
					case err == nil:
						acknowledged[i] = n
					case strings.Contains(err.Error(), errClosed.Error()) || strings.Contains(err.Error(), context.Canceled.Error()) && ctx.Err() == nil:
						return
					case closing.Load() && strings.Contains(err.Error(), rpctypes.ErrGRPCWatchCanceled.Error()): // etcd's word for it in watches
						return
					default:
						t.Errorf("call %d of goroutine %d in round %d: %v", n, i, round, err)
						return
					}
					if made.Add(1) == enough {
						close(busy)
					}
				}
			})
		}
		select {
		case <-busy:
		case <-ctx.Done():
			t.Error("the calls take too long")
		}
		closing.Store(true)
		if err := closed.Close(); err != nil {
			t.Error(err)
		}
		running.Wait()
		cancel()
		if _, _, err := closed.Claim(t.Context(), "late", "owner"); err == nil || !strings.Contains(err.Error(), "etcd is closed") {
			t.Errorf("a call after the end: %v", err)
		}
		b = open(t, dir)
		for i := 0; i < goroutines; i += len(underClose) { // those that put
			r, err := b.client.KV.Get(t.Context(), fmt.Sprintf("%s/close/%d/%d", prefix, round, i))
			if err != nil {
				t.Fatal(err)
			}
			stored := 0
			for _, kv := range r.Kvs {
				if stored, err = strconv.Atoi(string(kv.Value)); err != nil {
					t.Error(err)
				}
			}
			if stored != acknowledged[i] && stored != acknowledged[i]+1 {
				t.Errorf("%d is stored, %d was acknowledged last", stored, acknowledged[i])
			}
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
