package storage

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// readingCache refuses clients while it is not ready, as a watch cache does.
type readingCache struct {
	storage.Interface
	ready atomic.Bool
}

func (c *readingCache) ReadinessCheck() error {
	if !c.ready.Load() {
		return storage.ErrStorageNotReady
	}
	return nil
}

func (c *readingCache) GetList(context.Context, string, storage.ListOptions, runtime.Object) error {
	if !c.ready.Load() {
		return apierrors.NewTooManyRequests("storage is (re)initializing", 1)
	}
	return nil
}

func (c *readingCache) Watch(ctx context.Context, _ string, opts storage.ListOptions) (watch.Interface, error) {
	return nil, c.GetList(ctx, "", opts, nil)
}

func TestNobodyIsRefusedWhileTheFirstReadGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := &readingCache{}
		s := &afterFirstRead{Interface: cache}
		hasty, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := s.Watch(hasty, "", storage.ListOptions{}); !apierrors.IsTooManyRequests(err) {
			t.Errorf("a client that does not wait: %v", err)
		}
		time.AfterFunc(50*time.Millisecond, func() { cache.ready.Store(true) })
		began := time.Now()
		_, watched := s.Watch(t.Context(), "", storage.ListOptions{})
		listed := s.GetList(t.Context(), "", storage.ListOptions{}, nil)
		if err := errors.Join(watched, listed); err != nil || time.Since(began) > 60*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		cache.ready.Store(false)
		began = time.Now()
		if err := s.GetList(t.Context(), "", storage.ListOptions{}, nil); !apierrors.IsTooManyRequests(err) || time.Since(began) > 0 {
			t.Errorf("a cache that reads again: %v after %s", err, time.Since(began))
		}
	})
}

func TestAFirstReadThatTakesLongIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &afterFirstRead{Interface: &readingCache{}}
		began := time.Now()
		if _, err := s.Watch(t.Context(), "", storage.ListOptions{}); !apierrors.IsTooManyRequests(err) || time.Since(began) > firstReadPatience+time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		began = time.Now()
		if _, err := s.Watch(t.Context(), "", storage.ListOptions{}); !apierrors.IsTooManyRequests(err) || time.Since(began) > 0 {
			t.Errorf("the next one: %v after %s", err, time.Since(began))
		}
	})
}
