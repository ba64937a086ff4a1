package registry

import (
	"context"
	"errors"
)

// holdings are what admission holds for a write until it is over, one way or the other.
// One goroutine at a time has them: the write's.
type holdings struct{ release []func() }

type holdingsKey struct{}

// holding returns a context in which admission can Hold something, and what gives all of
// it back.
func holding(ctx context.Context) (context.Context, func()) {
	h := &holdings{}
	return context.WithValue(ctx, holdingsKey{}, h), func() {
		for _, release := range h.release {
			release()
		}
	}
}

// Hold has release called when the write that is being admitted is over: storage has the
// object by then, or never will.
func Hold(ctx context.Context, release func()) error {
	h, ok := ctx.Value(holdingsKey{}).(*holdings)
	if !ok {
		return errors.New("nobody will tell when this write is over")
	}
	h.release = append(h.release, release)
	return nil
}
