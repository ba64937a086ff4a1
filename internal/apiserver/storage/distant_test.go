package storage

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestAnEtcdThatIsAway: a request waited for it for a minute, and ended with a broken stream.
func TestAnEtcdThatIsAway(t *testing.T) {
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	leads := func(leader uint64) func(context.Context, string) (*clientv3.StatusResponse, error) {
		return func(context.Context, string) (*clientv3.StatusResponse, error) {
			return &clientv3.StatusResponse{Leader: leader}, nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		d := newDistant([]string{"http://a", "http://b"}, func(ctx context.Context, _ string) (*clientv3.StatusResponse, error) {
			asked.Add(1)
			return nil, hangs(ctx)
		})
		began := time.Now()
		ends := make(chan error, 20)
		for range cap(ends) {
			go func() { ends <- d.bounded(t.Context(), hangs) }()
		}
		for range cap(ends) {
			err := <-ends
			const want = "the cluster's data is unavailable: etcd does not answer: http://a, http://b; whether a write was carried out is not known"
			if !apierrors.IsServiceUnavailable(err) || err.Error() != want {
				t.Fatal(err)
			}
			if after, ok := apierrors.SuggestsClientDelay(err); !ok || after != 1 {
				t.Errorf("again after %d", after)
			}
		}
		if took := time.Since(began); took > distantPatience+statusPatience || asked.Load() != 2 {
			t.Errorf("it took %s, and %d were asked", took, asked.Load())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := newDistant([]string{"http://a"}, leads(0))
		if err := d.bounded(t.Context(), hangs); !apierrors.IsServiceUnavailable(err) {
			t.Error(err)
		}
		// One that is slow is waited for.
		d = newDistant([]string{"http://a"}, leads(7))
		slow := func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(40 * time.Second):
				return nil
			}
		}
		if err := d.bounded(t.Context(), slow); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.bounded(ctx, hangs); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		wrong := errors.New("wrong")
		if err := d.bounded(t.Context(), func(context.Context) error { return wrong }); !errors.Is(err, wrong) {
			t.Error(err)
		}
	})
}
