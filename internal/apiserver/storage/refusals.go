package storage

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"wherry.dev/internal/apiserver/refusal"
)

// refusals is storage whose errors say whose fault they are (package refusal).
type refusals struct{ storage.Interface }

// Versioner implements storage.Interface.
func (r refusals) Versioner() storage.Versioner { return refusingVersioner{r.Interface.Versioner()} }

// said returns what a client is told of an error. A request whose time is over has timed out; the library would tell of
// an internal error.
func said(ctx context.Context, err error) error {
	over := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if over && (errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded) {
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	return refusal.Version(err)
}

// Create implements storage.Interface.
func (r refusals) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return said(ctx, r.Interface.Create(ctx, key, obj, out, ttl))
}

// Get implements storage.Interface.
func (r refusals) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	return said(ctx, r.Interface.Get(ctx, key, opts, out))
}

// GetList implements storage.Interface.
func (r refusals) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	return said(ctx, r.Interface.GetList(ctx, key, opts, out))
}

// Watch implements storage.Interface.
func (r refusals) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := r.Interface.Watch(ctx, key, opts)
	return w, said(ctx, err)
}

// GuaranteedUpdate implements storage.Interface.
func (r refusals) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, change storage.UpdateFunc, cached runtime.Object,
) error {
	asked := func(input runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
		obj, ttl, err := change(input, meta)
		return obj, ttl, refusal.Change(err)
	}
	return said(ctx, r.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, asked, cached))
}

// refusingVersioner reads the versions that requests bring, and serves dry runs, which prepare an object
// for storage without storing it.
type refusingVersioner struct{ storage.Versioner }

// PrepareObjectForStorage implements storage.Versioner.
func (v refusingVersioner) PrepareObjectForStorage(obj runtime.Object) error {
	return refusal.Version(v.Versioner.PrepareObjectForStorage(obj))
}

// ObjectResourceVersion implements storage.Versioner.
func (v refusingVersioner) ObjectResourceVersion(obj runtime.Object) (uint64, error) {
	version, err := v.Versioner.ObjectResourceVersion(obj)
	return version, refusal.Change(err)
}
