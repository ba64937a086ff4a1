package bootstrap

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver/registry"
)

// keepRetry is the pause after a failure to write an object that the server keeps.
const keepRetry = 10 * time.Second

// ownObject names an object that somebody else may delete or change, and that the server writes again.
type ownObject struct {
	group, resource, namespace, name string
	// changes means that it is also written again when it was changed.
	changes bool
	// sources are certificates whose change lets it be written again, too.
	sources []dynamiccertificates.CAContentProvider
}

// listener is told when certificates change.
type listener func()

func (l listener) Enqueue() { l() }

// keep calls ensure when the watch of the object has begun, whenever the object goes or, if that matters,
// changes, and again some time after a failure, until ctx ends.
func keep[T registry.Object](ctx context.Context, store *registry.Store, k ownObject, ensure func(context.Context) error) error {
	wake := make(chan struct{}, 1)
	due := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	changed := func(T) {}
	if k.changes {
		changed = func(T) { due() }
	}
	for _, s := range k.sources {
		s.AddListener(listener(due))
	}
	follower := registry.NewFollower(changed, func(types.NamespacedName) { due() })
	done := make(chan error, 1)
	go func() {
		one := fields.OneTermEqualSelector(metav1.ObjectNameField, k.name)
		done <- follower.Run(request.WithNamespace(ctx, k.namespace), store, one)
	}()
	synced := follower.Synced()
	var again <-chan time.Time
	for {
		select {
		case err := <-done: // after ctx ended
			return err
		case <-wake:
		case <-synced: // it may have gone before the watch began
			synced = nil
		case <-again:
		}
		again = nil
		if err := ensure(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot write an object that the API server keeps; trying again",
				"resource", k.resource, "object", klog.KRef(k.namespace, k.name), "in", keepRetry)
			again = time.After(keepRetry)
		}
	}
}
