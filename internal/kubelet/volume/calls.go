package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// calls are the operations on volumes under way. The kernel may not return from one, as when a server of files is away.
// Whoever waits for it can stop waiting, and no other pod waits at all. On one volume of a pod there is one operation at
// a time: the next one begins when the kernel has returned from the one before, so that nothing takes effect late.
type calls struct {
	mu      sync.Mutex
	running map[string]chan struct{} // by pod and volume; closed when the call has returned
}

// all stands for all volumes of a pod.
const all = ""

var errHangs = errors.New("an earlier operation on it has not returned")

// call runs f and returns what it returns, or an error once the context ends.
func call[T any](ctx context.Context, c *calls, uid types.UID, volume string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	done, err := c.begin(ctx, uid, volume)
	if err != nil {
		return none, err
	}
	returned := make(chan result, 1)
	go func() {
		defer c.end(uid, volume, done)
		value, err := f()
		returned <- result{value, err}
	}()
	select {
	case r := <-returned:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// alone runs f when no other call concerns the same volume. Unlike call it returns when f does: it is for what is a part
// of a call.
func (c *calls) alone(ctx context.Context, uid types.UID, volume string, f func() error) error {
	done, err := c.begin(ctx, uid, volume)
	if err != nil {
		return err
	}
	defer c.end(uid, volume, done)
	return f()
}

func callKey(uid types.UID, volume string) string { return string(uid) + "/" + volume }

// begin waits for earlier calls that concern the same volume.
func (c *calls) begin(ctx context.Context, uid types.UID, volume string) (done chan struct{}, err error) {
	for {
		c.mu.Lock()
		before := c.beforeLocked(uid, volume)
		if before == nil {
			done = make(chan struct{})
			if c.running == nil {
				c.running = map[string]chan struct{}{}
			}
			c.running[callKey(uid, volume)] = done
			c.mu.Unlock()
			return done, nil
		}
		c.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errHangs, context.Cause(ctx))
		}
	}
}

// beforeLocked returns a call that has to return first.
func (c *calls) beforeLocked(uid types.UID, volume string) chan struct{} {
	if volume != all {
		if before := c.running[callKey(uid, all)]; before != nil {
			return before
		}
		return c.running[callKey(uid, volume)]
	}
	for key, before := range c.running {
		if strings.HasPrefix(key, callKey(uid, all)) {
			return before
		}
	}
	return nil
}

func (c *calls) end(uid types.UID, volume string, done chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, callKey(uid, volume))
	close(done)
}
