package bootstrap

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A server that was started while a member of etcd went away ended at once.
func TestBootstrapOutlastsWhatPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := New(Config{})
		calls := 0
		passing := []error{
			apierrors.NewInternalError(errors.New("rpc error: code = Unavailable")), apierrors.NewConflict(schema.GroupResource{}, "x", nil),
			apierrors.NewAlreadyExists(schema.GroupResource{}, "x"), errors.New("connection refused"),
		}
		err := o.insist(t.Context(), func() error {
			if calls++; calls <= len(passing) {
				return passing[calls-1]
			}
			return nil
		})
		if err != nil || calls != 5 {
			t.Errorf("%d calls, %v", calls, err)
		}
		calls = 0
		refused := apierrors.NewForbidden(schema.GroupResource{}, "x", nil)
		if err := o.insist(t.Context(), func() error { calls++; return refused }); !errors.Is(err, refused) || calls != 1 {
			t.Errorf("refused: %d calls, %v", calls, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := o.insist(ctx, func() error { return passing[0] }); err == nil {
			t.Error("told to stop, it says that it succeeded")
		}
	})
}
