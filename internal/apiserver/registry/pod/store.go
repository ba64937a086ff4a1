package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/trace"
)

// Store is the main endpoint of pods: the generic one, which also records a trace span for creating
// and for deleting a pod.
type Store struct{ *registry.Store }

var _ rest.StandardStorage = (*Store)(nil)

// Create implements rest.Creater.
func (s *Store) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	out, err := s.Store.Create(ctx, obj, validate, opts)
	if err == nil {
		record(ctx, out, "apiserver: create pod")
	}
	return out, err
}

// Delete implements rest.GracefulDeleter.
func (s *Store) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	out, gone, err := s.Store.Delete(ctx, name, validate, opts)
	if err == nil {
		step := "apiserver: mark pod for deletion"
		if gone {
			step = "apiserver: delete pod"
		}
		record(ctx, out, step)
	}
	return out, gone, err
}

// StatusStore is pods/NAME/status, which also records a span.
type StatusStore struct{ *registry.StatusStore }

// Update implements rest.Updater.
func (s *StatusStore) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, opts *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	out, created, err := s.StatusStore.Update(ctx, name, info, create, update, forceAllowCreate, opts)
	if err == nil {
		record(ctx, out, "apiserver: update pod status")
	}
	return out, created, err
}

// record records a span for a step that began when the request came in and is over now.
func record(ctx context.Context, obj runtime.Object, step string) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	start, ok := genericapirequest.ReceivedTimestampFrom(ctx)
	if !ok {
		return // not a client's request: nobody waits for it
	}
	trace.Record(ctx, string(p.UID), step, start, time.Now(), trace.Namespace.String(p.Namespace), trace.PodName.String(p.Name))
}
