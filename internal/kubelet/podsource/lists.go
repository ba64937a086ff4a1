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

// lister is the part of a typed client that a list and its watch need.
type lister[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// listWatch returns what lists and watches the objects of api that sel selects.
func listWatch[L runtime.Object](client kubernetes.Interface, api lister[L], sel fields.Selector) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = sel.String()
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = sel.String()
			return api.Watch(ctx, o)
		},
	}, client)
}

// Pods follows the pods that are bound to a node.
func Pods(ctx context.Context, client kubernetes.Interface, node string, ev Events) {
	sel := fields.OneTermEqualSelector("spec.nodeName", node)
	only := ev.Set
	ev.Set = func(obj runtime.Object) {
		// The server applies the selector. If it ignored it, the node must not run the pods of
		// others.
		if obj.(*v1.Pod).Spec.NodeName == node {
			only(obj)
		}
	}
	api := client.CoreV1().Pods(metav1.NamespaceAll)
	Follow(ctx, "pods of the node", listWatch(client, api, sel), &v1.Pod{}, ev)
}

// Services follows all services.
func Services(ctx context.Context, client kubernetes.Interface, ev Events) {
	api := client.CoreV1().Services(metav1.NamespaceAll)
	Follow(ctx, "services", listWatch(client, api, fields.Everything()), &v1.Service{}, ev)
}

// Node follows one node.
func Node(ctx context.Context, client kubernetes.Interface, name string, ev Events) {
	sel := fields.OneTermEqualSelector("metadata.name", name)
	only := ev.Set
	ev.Set = func(obj runtime.Object) {
		if obj.(*v1.Node).Name == name {
			only(obj)
		}
	}
	api := client.CoreV1().Nodes()
	Follow(ctx, "own node", listWatch(client, api, sel), &v1.Node{}, ev)
}
