package service

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/storage"
)

// REST is the main endpoint of services. The store tells its hooks that an update has succeeded before it is
// written, and tries it again if another was faster. What a service gives up is released here, when the update
// is written: before that the service still has it, and keeps it if the update fails after all.
type REST struct {
	*registry.Store
	allocator *Allocator
}

// NewREST returns the endpoint of a store that was given to Customize.
func NewREST(store *registry.Store, a *Allocator) *REST { return &REST{store, a} }

// Create implements rest.Creater.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	t := &attempts{}
	last := func(ctx context.Context, obj runtime.Object) error { // what the store does before it writes
		if validate != nil {
			if err := validate(ctx, obj); err != nil {
				return err
			}
		}
		t.writing = true
		return nil
	}
	out, err := r.Store.Create(context.WithValue(ctx, attemptsKey{}, t), obj, last, opts)
	r.allocator.release(ctx, t.over(out, err))
	return out, err
}

// Update implements rest.Updater and rest.Patcher.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, opts *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	t := &attempts{}
	obj, created, err := r.Store.Update(context.WithValue(ctx, attemptsKey{}, t), name, info, create, update, forceAllowCreate, opts)
	r.allocator.release(ctx, t.over(obj, err))
	return obj, created, err
}

type attemptsKey struct{}

// attempts has what the attempts of one request took and would give up. One follows another.
type attempts struct {
	lost         []claim // taken by attempts that were not written
	taken, given []claim // of the last attempt
	writing      bool    // storage was asked to create the service: if it has failed, nobody knows what it did
}

// attemptsIn returns what collects for the request; nil if nothing does.
func attemptsIn(ctx context.Context) *attempts {
	t, _ := ctx.Value(attemptsKey{}).(*attempts)
	return t
}

// next begins another attempt: the last one was not written.
func (t *attempts) next() {
	if t != nil {
		t.lost = append(t.lost, t.taken...)
		t.taken, t.given, t.writing = nil, nil, false
	}
}

// over returns what is to be released after the request. Nobody knows what storage did after an error that does not say that
// it wrote nothing: what the last attempt took stays taken then, until the repair finds that no service has it.
func (t *attempts) over(obj runtime.Object, err error) []claim {
	out := t.lost
	switch {
	case err == nil:
		out = slices.Concat(out, t.taken, t.given)
	case unwritten(err):
		out = append(out, t.taken...)
	}
	s, ok := obj.(*corev1.Service)
	if err != nil || !ok {
		return out
	}
	has := claimsOf(s)
	return slices.DeleteFunc(out, func(c claim) bool { return slices.Contains(has, c) })
}

// unwritten reports whether an error of storage says that nothing was written.
func unwritten(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsRequestEntityTooLargeError(err) ||
		apierrors.ReasonForError(err) == storage.ReasonInsufficientStorage
}
