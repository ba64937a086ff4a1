package registry

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"wherry.dev/internal/apiserver/storage"
)

// holdings is what admission holds for a write until that is over, whether it succeeds or not.
type holdings struct {
	mu      sync.Mutex
	release []func()
	over    bool
}

type holdingsKey struct{}

// Holding returns a context in which admission can Hold something, and a function that releases all
// of it. What admission decides there can mind the turns of other servers. The rows of kinds have their own for each write; it
// is for writes that others do.
func Holding(ctx context.Context) (context.Context, func()) {
	h := &holdings{}
	return context.WithValue(storage.TakingTurns(ctx), holdingsKey{}, h), func() {
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

const (
	// turnsTried is how often a write is decided anew because other servers were faster. At each time one of them has got on.
	turnsTried = 50
	// turnPause is the longest pause before that, on average half of it.
	turnPause = 10 * time.Millisecond
)

// inTurns makes a write, again and again while other servers' decisions come in between. What an attempt fills in, a UID say,
// the next one fills in again.
func inTurns(ctx context.Context, write func(context.Context) error) error {
	attempt := func() error {
		ctx, over := Holding(ctx)
		defer over()
		return write(ctx)
	}
	err := attempt()
	for n := 1; n < turnsTried && storage.IsMissedTurn(err); n++ {
		select {
		case <-time.After(rand.N(turnPause)): //nolint:gosec // it only has to differ between servers
		case <-ctx.Done():
			return err
		}
		err = attempt()
	}
	return err
}
