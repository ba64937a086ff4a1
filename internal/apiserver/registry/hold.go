package registry

import (
	"context"
	"errors"
)

// holdings is what admission holds for a write until that is over, whether it succeeds or not. Only
// the write's goroutine uses it.
type holdings struct{ release []func() }

type holdingsKey struct{}

// holding returns a context in which admission can Hold something, and a function that releases all
// of it.
func holding(ctx context.Context) (context.Context, func()) {
	h := &holdings{}
	return context.WithValue(ctx, holdingsKey{}, h), func() {
		for _, release := range h.release {
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
	h.release = append(h.release, release)
	return nil
}
