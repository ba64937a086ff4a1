package image

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/klog/v2"
)

var errClosed = errors.New("the image store is being closed")

// flights joins concurrent pulls of one image. A pull continues as long as one of its callers
// waits, and is cancelled when the last one has left. But it also continues for a caller that
// only ran out of time, because that caller will ask again.
type flights struct {
	mu     sync.Mutex
	all    map[string]*flight
	closed bool
	work   sync.WaitGroup
}

type flight struct {
	ref     string
	waiters int
	cancel  context.CancelFunc
	done    chan struct{}

	listeners []*listener // guarded by flights.mu
	last      Progress    // guarded by flights.mu
	img       Image       // set before done is closed
	err       error
}

// listener receives progress until it leaves, never later, and from one goroutine at a time.
type listener struct {
	mu sync.Mutex
	fn func(Progress) // nil once it has left
}

func (l *listener) tell(p Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fn != nil {
		l.fn(p)
	}
}

func (l *listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fn = nil
}

// pullFunc is the work of a flight.
type pullFunc func(context.Context, func(Progress)) (Image, error)

// do runs fn once for all callers with the same key.
func (f *flights) do(ctx context.Context, key, ref string, progress func(Progress), fn pullFunc) (Image, error) {
	if err := context.Cause(ctx); err != nil {
		return Image{}, err
	}
	l := &listener{fn: progress}
	fl, err := f.join(ctx, key, ref, l, fn)
	if err != nil {
		return Image{}, err
	}
	defer f.leave(ctx, key, fl)
	defer l.leave()
	select {
	case <-fl.done:
		return fl.img, fl.err
	case <-ctx.Done():
		return Image{}, context.Cause(ctx)
	}
}

func (f *flights) join(ctx context.Context, key, ref string, l *listener, fn pullFunc) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errClosed
	}
	fl := f.all[key]
	if fl == nil {
		fl = &flight{ref: ref, done: make(chan struct{})}
		if f.all == nil {
			f.all = map[string]*flight{}
		}
		f.all[key] = fl
		var pullCtx context.Context
		// keep the first caller's values (its trace), but not its cancellation
		pullCtx, fl.cancel = context.WithCancel(context.WithoutCancel(ctx))
		f.work.Go(func() { f.run(pullCtx, key, fl, fn) })
	}
	fl.waiters++
	fl.listeners = append(fl.listeners, l)
	return fl, nil
}

func (f *flights) run(ctx context.Context, key string, fl *flight, fn pullFunc) {
	defer fl.cancel()
	fl.img, fl.err = fn(ctx, func(p Progress) {
		f.mu.Lock()
		fl.last = p
		listeners := fl.listeners
		f.mu.Unlock()
		for _, l := range listeners {
			l.tell(p)
		}
	})
	f.forget(key, fl)
	if f.alone(fl) && fl.err != nil && !errors.Is(fl.err, context.Canceled) {
		klog.FromContext(ctx).Error(fl.err, "An image pull failed after its callers had given up", "image", fl.ref)
	}
	close(fl.done)
}

// alone reports whether all callers have left.
func (f *flights) alone(fl *flight) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fl.waiters == 0
}

// forget makes the next caller start a new pull.
func (f *flights) forget(key string, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all[key] == fl {
		delete(f.all, key)
	}
}

func (f *flights) leave(ctx context.Context, key string, fl *flight) {
	f.mu.Lock()
	fl.waiters--
	unwanted := fl.waiters == 0 && !errors.Is(ctx.Err(), context.DeadlineExceeded)
	f.mu.Unlock()
	if unwanted {
		f.forget(key, fl)
		fl.cancel()
		<-fl.done
	}
}

// begin registers work that close waits for. The caller must call work.Done.
func (f *flights) begin() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errClosed
	}
	f.work.Add(1)
	return nil
}

// close cancels what is in flight and waits for it.
func (f *flights) close() {
	f.mu.Lock()
	f.closed = true
	for _, fl := range f.all {
		fl.cancel()
	}
	f.mu.Unlock()
	f.work.Wait()
}

// Pulling is a pull in progress.
type Pulling struct {
	Reference string
	Progress  Progress
}

// Pulls lists the pulls in progress, whoever asked for them.
func (s *Store) Pulls() []Pulling {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	list := make([]Pulling, 0, len(s.flights.all))
	for _, fl := range s.flights.all {
		list = append(list, Pulling{fl.ref, fl.last})
	}
	slices.SortFunc(list, func(a, b Pulling) int {
		if a.Reference < b.Reference {
			return -1
		}
		return 1
	})
	return list
}

// keyLocks are named mutexes whose waiters can give up.
type keyLocks struct {
	mu sync.Mutex
	m  map[string]*keyLock
}

type keyLock struct {
	held  chan struct{} // capacity 1
	users int           // holder and waiters
}

// lock locks the name. If err is nil, the caller must call unlock.
func (k *keyLocks) lock(ctx context.Context, name string) (unlock func(), err error) {
	k.mu.Lock()
	if k.m == nil {
		k.m = map[string]*keyLock{}
	}
	l := k.m[name]
	if l == nil {
		l = &keyLock{held: make(chan struct{}, 1)}
		k.m[name] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.m, name)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
