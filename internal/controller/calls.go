package controller

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Recorder returns a recorder of events whose source is the component. Stop ends it.
func Recorder(ctx context.Context, client clientset.Interface, component string) (events record.EventRecorder, stop func()) {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return b.NewRecorder(scheme.Scheme, v1.EventSource{Component: component}), b.Shutdown
}

// Found returns nil for what does not exist.
func Found[T any](obj *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return obj, nil
}

// SlowStart calls f n times, in batches of 1, 2, 4 and so on, each of which runs at once. After a
// batch in which a call failed there is no further one: a set whose pods are all refused, by a quota
// for instance, costs one request and not hundreds.
func SlowStart(n int, f func(i int) error) error {
	done := 0
	for batch := 1; done < n; batch *= 2 {
		size := min(batch, n-done)
		if err := Together(size, func(i int) error { return f(done + i) }); err != nil {
			return err
		}
		done += size
	}
	return nil
}

// Together calls f with 0 to n-1 at once, and returns one of the errors: usually they are all alike.
func Together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { errs[i] = f(i) })
	}
	calls.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
