package storage

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// unreadableError says in a watch what is wrong with an object that cannot be decrypted or decoded, as the library
// says it when such an object is deleted. It would say InternalError of a new value, upon which the watch cache
// does not list anew but watches on, for half a minute, from where it was. The progress that etcd tells meanwhile
// of the watch that ended may reach the next one before its first event does: then the cache took itself for up to
// date without that event, and went on listing the object as it had been.
type unreadableError struct{ error }

var _ apierrors.APIStatus = unreadableError{}

// Status implements apierrors.APIStatus.
func (e unreadableError) Status() metav1.Status {
	return metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError, Message: e.Error(),
	}
}

func (e unreadableError) Unwrap() error { return e.error }

func unreadable(err error) error {
	if err == nil {
		return nil
	}
	return unreadableError{err}
}

// tellingCodec is the codec of a store, which decodes only what watches bring.
type tellingCodec struct{ runtime.Codec }

// Decode implements runtime.Decoder.
func (c tellingCodec) Decode(data []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, found, err := c.Codec.Decode(data, kind, into)
	return obj, found, unreadable(err)
}

type tellingTransformer struct{ value.Transformer }

// TransformFromStorage implements value.Transformer.
func (t tellingTransformer) TransformFromStorage(ctx context.Context, data []byte, about value.Context) ([]byte, bool, error) {
	out, stale, err := t.Transformer.TransformFromStorage(ctx, data, about)
	return out, stale, unreadable(err)
}
