package registry

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// soon is after how long a read is repeated that came before the watch cache was filled. An informer by
// itself would wait most of a second.
const soon = 10 * time.Millisecond

// ListWatch returns a store as informers want it. They share the objects with the watch cache: nobody
// may change them.
func ListWatch(store *Store) cache.ListerWatcher {
	from := stored{store}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return persistently(ctx, func() (runtime.Object, error) { return from.List(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return persistently(ctx, func() (watch.Interface, error) { return from.Watch(ctx, o) })
		},
	}, from)
}

func persistently[T any](ctx context.Context, read func() (T, error)) (T, error) {
	for {
		out, err := read()
		if err == nil || !apierrors.IsTooManyRequests(err) {
			return out, err
		}
		select {
		case <-time.After(soon):
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}
