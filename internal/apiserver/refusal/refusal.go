// Package refusal tells a client's faults from the server's. The library returns many of a client's as
// plain errors (a resource version that is no number, a patch that does not fit the kind); they would be
// answered as internal errors, and sent again.
package refusal

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
)

// Version makes a bad request of an error that says that an option, such as resourceVersion, is
// no good, or an object to be created that has one; and what etcd does not take for its size is too large
// here, too.
func Version(err error) error {
	if isTooLarge(err) {
		return apierrors.NewRequestEntityTooLargeError("the object is larger than what etcd stores: " + err.Error())
	}
	if storage.IsInvalidError(err) || errors.Is(err, storage.ErrResourceVersionSetOnCreate) {
		return apierrors.NewBadRequest(err.Error())
	}
	return err
}

// isTooLarge reports whether etcd, or its client, refused an object for its size.
func isTooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}

// What the library says of a patch or an object that does not fit its kind, or the object it is for:
// plain errors, which only their words tell from the library's own signals.
var misfits = []string{
	"failed to create typed patch object",
	"failed to convert new object",
	"does not contain declared merge key",
	"list element types are not identical",
	"unable to find api field",
}

// Change makes a bad request of an error of a change that is the request's fault.
func Change(err error) error {
	var said apierrors.APIStatus
	if err == nil || errors.As(err, &said) {
		return err
	}
	if _, ok := errors.AsType[*strconv.NumError](err); ok { // of the new object's resource version
		return apierrors.NewBadRequest("metadata.resourceVersion: " + err.Error())
	}
	if slices.ContainsFunc(misfits, func(words string) bool { return strings.Contains(err.Error(), words) }) {
		return apierrors.NewBadRequest(err.Error())
	}
	return err
}

// Of returns info with errors that say whose fault they are.
func Of(info rest.UpdatedObjectInfo) rest.UpdatedObjectInfo { return refusing{info} }

type refusing struct{ rest.UpdatedObjectInfo }

// UpdatedObject implements rest.UpdatedObjectInfo.
func (r refusing) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	obj, err := r.UpdatedObjectInfo.UpdatedObject(ctx, old)
	return obj, Change(err)
}
