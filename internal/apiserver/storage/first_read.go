package storage

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// A watch cache that reads what is stored refuses clients, and tells them to come back in a second. When a server starts,
// that takes some milliseconds; its own controllers and whoever waits for it would all sleep for that second.
const (
	firstReadPatience = 2 * time.Second
	firstReadPoll     = 2 * time.Millisecond
)

// afterFirstRead lets lists and watches wait while the watch cache reads what is stored for the first time. Later, when it
// must read all of it again because something is wrong, it refuses them as upstream does.
type afterFirstRead struct {
	storage.Interface
	over atomic.Bool
}

func (s *afterFirstRead) wait(ctx context.Context) {
	if s.over.Load() {
		return
	}
	err := wait.PollUntilContextTimeout(ctx, firstReadPoll, firstReadPatience, true, func(context.Context) (bool, error) {
		return s.ReadinessCheck() == nil, nil
	})
	if err == nil || ctx.Err() == nil { // else this one waits no longer, and others may
		s.over.Store(true)
	}
}

// GetList implements storage.Interface.
func (s *afterFirstRead) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	s.wait(ctx)
	return s.Interface.GetList(ctx, key, opts, out)
}

// Watch implements storage.Interface.
func (s *afterFirstRead) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	s.wait(ctx)
	return s.Interface.Watch(ctx, key, opts)
}
