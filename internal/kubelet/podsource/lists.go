package podsource

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Pods follows the pods that are bound to a node.
func Pods(ctx context.Context, client kubernetes.Interface, node string, ev Events) {
	sel := fields.OneTermEqualSelector("spec.nodeName", node).String()
	only := ev.Set
	ev.Set = func(obj runtime.Object) {
		// The server applies the selector. If it ignored it, the node must not run the pods of
		// others.
		if obj.(*v1.Pod).Spec.NodeName == node {
			only(obj)
		}
	}
	api := client.CoreV1().Pods(metav1.NamespaceAll)
	Follow(ctx, "pods of the node", cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = sel
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = sel
			return api.Watch(ctx, o)
		},
	}, client), &v1.Pod{}, ev)
}

// Services follows all services.
func Services(ctx context.Context, client kubernetes.Interface, ev Events) {
	api := client.CoreV1().Services(metav1.NamespaceAll)
	Follow(ctx, "services", cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.Watch(ctx, o)
		},
	}, client), &v1.Service{}, ev)
}

// Node follows one node.
func Node(ctx context.Context, client kubernetes.Interface, name string, ev Events) {
	sel := fields.OneTermEqualSelector("metadata.name", name).String()
	only := ev.Set
	ev.Set = func(obj runtime.Object) {
		if obj.(*v1.Node).Name == name {
			only(obj)
		}
	}
	api := client.CoreV1().Nodes()
	Follow(ctx, "own node", cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = sel
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = sel
			return api.Watch(ctx, o)
		},
	}, client), &v1.Node{}, ev)
}
