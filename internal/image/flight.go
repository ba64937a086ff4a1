package image

import (
	"context"
	"sync"
)

// flights joins concurrent pulls of one image. A pull goes on as long as one of
// those who asked for it still waits, and is cancelled when the last has left.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

type flight struct {
	waiters int
	cancel  context.CancelFunc
	done    chan struct{}

	listeners []func(Progress) // guarded by flights.mu
	img       Image            // set before done is closed
	err       error
}

// do runs fn once for all callers with the same key.
func (f *flights) do(ctx context.Context, key string, progress func(Progress), fn func(context.Context, func(Progress)) (Image, error)) (Image, error) {
	fl := f.join(ctx, key, progress, fn)
	defer f.leave(fl)
	select {
	case <-fl.done:
		return fl.img, fl.err
	case <-ctx.Done():
		return Image{}, context.Cause(ctx)
	}
}

func (f *flights) join(ctx context.Context, key string, progress func(Progress), fn func(context.Context, func(Progress)) (Image, error)) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.all[key]
	if fl == nil {
		fl = &flight{done: make(chan struct{})}
		if f.all == nil {
			f.all = map[string]*flight{}
		}
		f.all[key] = fl
		var pullCtx context.Context
		// the first caller's values (its trace) go along, its cancellation does not
		pullCtx, fl.cancel = context.WithCancel(context.WithoutCancel(ctx))
		go f.run(pullCtx, key, fl, fn)
	}
	fl.waiters++
	if progress != nil {
		fl.listeners = append(fl.listeners, progress)
	}
	return fl
}

func (f *flights) run(ctx context.Context, key string, fl *flight, fn func(context.Context, func(Progress)) (Image, error)) {
	defer fl.cancel()
	fl.img, fl.err = fn(ctx, func(p Progress) {
		f.mu.Lock()
		listeners := fl.listeners
		f.mu.Unlock()
		for _, l := range listeners {
			l(p)
		}
	})
	f.mu.Lock()
	if f.all[key] == fl {
		delete(f.all, key)
	}
	f.mu.Unlock()
	close(fl.done)
}

func (f *flights) leave(fl *flight) {
	f.mu.Lock()
	fl.waiters--
	last := fl.waiters == 0
	if last {
		for k, v := range f.all {
			if v == fl {
				delete(f.all, k) // whoever comes now starts anew
			}
		}
	}
	f.mu.Unlock()
	if last {
		fl.cancel()
		<-fl.done
	}
}
