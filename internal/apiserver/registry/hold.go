package registry

import (
	"context"
	"errors"
	"sync"
)

// holdings is what admission holds for a write until that is over, whether it succeeds or not.
type holdings struct {
	mu      sync.Mutex
	release []func()
	over    bool
}

type holdingsKey struct{}

// Holding returns a context in which admission can Hold something, and a function that releases all
// of it. The rows of kinds have their own for each write; it is for writes that others do.
func Holding(ctx context.Context) (context.Context, func()) {
	h := &holdings{}
	return context.WithValue(ctx, holdingsKey{}, h), func() {
		h.mu.Lock()
		all := h.release
		h.release, h.over = nil, true
		h.mu.Unlock()
		for _, release := range all {
			release()
		}
	}
}

// Hold arranges for release to be called when the write that is being admitted is over: by then
// storage has the object, or never will.
func Hold(ctx context.Context, release func()) error {
	h, ok := ctx.Value(holdingsKey{}).(*holdings)
	if !ok {
		return errors.New("this request does not report when its write is over")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over { // whoever asked has given up waiting
		return errors.New("the request has ended")
	}
	h.release = append(h.release, release)
	return nil
}
