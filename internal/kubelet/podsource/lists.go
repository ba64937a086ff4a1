package podsource

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/reflector"
)

// Pods follows the pods that are bound to a node.
func Pods(ctx context.Context, client kubernetes.Interface, node string, ev Events) {
	sel := fields.OneTermEqualSelector("spec.nodeName", node)
	only, gone := ev.Set, ev.Gone
	ev.Set = func(obj runtime.Object) {
		// The server applies the selector. If it ignored it, the node must not run the pods of
		// others.
		if pod := fromAPI(obj); pod.Spec.NodeName == node {
			only(pod)
		}
	}
	ev.Gone = func(obj runtime.Object) { gone(fromAPI(obj)) }
	api := client.CoreV1().Pods(metav1.NamespaceAll)
	follow(ctx, "pods of the node", reflector.New(client, api, sel), &v1.Pod{}, ev)
}

// fromAPI says of a pod that it comes from the API server, whatever its annotations claim: whoever may create pods must not get
// one that counts as the node's own, which is critical and has nobody report its status.
func fromAPI(obj runtime.Object) *v1.Pod {
	pod := obj.(*v1.Pod)
	if pods.IsStatic(pod) && !pods.IsMirror(pod) {
		pod.Annotations[pods.AnnotationConfigSource] = "api"
	}
	return pod
}

// BoundPods follows the pods of all nodes, for whoever plays many of them. What servers remember of
// who wrote which field is dropped.
func BoundPods(ctx context.Context, client kubernetes.Interface, ev Events) {
	only := ev.Set
	ev.Set = func(obj runtime.Object) {
		pod := fromAPI(obj)
		pod.ManagedFields = nil
		if pod.Spec.NodeName != "" {
			only(pod)
		}
	}
	api := client.CoreV1().Pods(metav1.NamespaceAll)
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "")
	follow(ctx, "pods of all nodes", reflector.New(client, api, bound), &v1.Pod{}, ev)
}

// Nodes follows all nodes, for whoever plays many of them.
func Nodes(ctx context.Context, client kubernetes.Interface, ev Events) {
	only := ev.Set
	ev.Set = func(obj runtime.Object) {
		obj.(*v1.Node).ManagedFields = nil
		only(obj)
	}
	follow(ctx, "all nodes", reflector.New(client, client.CoreV1().Nodes(), fields.Everything()), &v1.Node{}, ev)
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
	follow(ctx, "own node", reflector.New(client, api, sel), &v1.Node{}, ev)
}
