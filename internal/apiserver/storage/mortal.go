package storage

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// retryIn tells clients when to ask again.
func retryIn(seconds int32) *metav1.StatusDetails {
	return &metav1.StatusDetails{RetryAfterSeconds: seconds}
}

func unavailable(reason error) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("the cluster's data is unavailable: etcd has stopped: %v", reason))
}

// whileAlive makes a call with a context that also ends when the server fails, or is about to be closed:
// etcd's own client would wait until its deadline, and whileAlive returns at once.
func whileAlive(ctx context.Context, d *door, call func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)() //nolint:contextcheck // the end of the server, not of a request
	err := call(ctx)
	if errors.Is(err, errClosed) {
		return unavailable(errClosed)
	}
	if reason := d.err(); err != nil && reason != nil {
		err = unavailable(reason)
	}
	return err
}

// around is the around of the embedded server: writes go through the gate.
func (e *embedded) around(ctx context.Context, size int, call func(context.Context) error) error {
	return whileAlive(ctx, e.door, func(ctx context.Context) error {
		if size == 0 {
			return call(ctx)
		}
		leave, err := e.gate.enter(ctx, int64(size))
		if err != nil {
			return err
		}
		defer leave()
		return call(ctx)
	})
}
