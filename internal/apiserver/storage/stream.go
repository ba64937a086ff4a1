package storage

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// streamed returns a client whose watches of a resource have a stream of their own. etcd answers a stream's request for
// progress only when every watch on it has begun, and one that has just listed begins with the next revision, which may
// not come for long: its neighbours, for whom the revision before is news, would wait just as long.
func streamed(c *kubernetes.Client, resource schema.GroupResource) *kubernetes.Client {
	own := clientv3.NewCtxClient(context.WithoutCancel(c.Ctx()))
	own.KV, own.Lease, own.Watcher = c.KV, c.Lease, &resourceWatcher{c.Watcher, resource.String()}
	return &kubernetes.Client{Client: own, Kubernetes: c.Kubernetes}
}

// resourceWatcher marks the contexts of a resource's watches: those with equal metadata share a stream.
type resourceWatcher struct {
	clientv3.Watcher
	resource string
}

func (w *resourceWatcher) mark(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "resource", w.resource)
}

// Watch implements clientv3.Watcher.
func (w *resourceWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return w.Watcher.Watch(w.mark(ctx), key, opts...)
}

// RequestProgress implements clientv3.Watcher.
func (w *resourceWatcher) RequestProgress(ctx context.Context) error {
	return w.Watcher.RequestProgress(w.mark(ctx))
}
