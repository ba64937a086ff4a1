package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"
)

// group runs components. Each has a context of its own, so that they can be stopped one by one, the
// last started first.
type group struct {
	failed chan error // capacity 1: the first component that stopped unexpectedly

	mu      sync.Mutex
	members []*member
}

type member struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

func newGroup() *group { return &group{failed: make(chan error, 1)} }

// start runs a component until the group stops it. If it returns earlier, it has failed.
func (g *group) start(ctx context.Context, name string, run func(context.Context) error) {
	// not a child of ctx's cancellation: stop decides the order
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(name))
	m := &member{name: name, cancel: cancel, done: make(chan struct{})}
	g.mu.Lock()
	g.members = append(g.members, m)
	g.mu.Unlock()
	go func() {
		defer close(m.done)
		err := run(ctx)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Canceled) {
				m.err = fmt.Errorf("stop %s: %w", name, err)
			}
			return
		}
		if err == nil {
			err = errors.New("stopped unexpectedly")
		}
		select {
		case g.failed <- fmt.Errorf("%s: %w", name, err):
		default:
		}
	}()
}

// wait returns nil when ctx ends, or the error of the first component that failed.
func (g *group) wait(ctx context.Context) error {
	_, err := waitFor[struct{}](ctx, g, nil)
	return err
}

// waitFor reports whether the event happened; if not, ctx has ended, or err says why a component
// failed.
func waitFor[T any](ctx context.Context, g *group, event <-chan T) (happened bool, err error) {
	select {
	case <-event:
		return true, nil
	case <-ctx.Done():
		return false, nil
	case err := <-g.failed:
		return false, err
	}
}

// ready waits until the component is ready, or something goes wrong: a component has failed, never
// is closed, or ctx ends.
func (g *group) ready(ctx context.Context, name string, ready, never <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case err := <-g.failed:
		return err
	case <-never:
		return fmt.Errorf("%s will not become ready", name)
	case <-ctx.Done():
		return fmt.Errorf("stopped while waiting for %s", name)
	}
}

// stop stops all components, the last started first, and waits for each before it stops the next.
// When ctx ends it no longer waits, and returns an error that names those that are still there.
func (g *group) stop(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, m := range slices.Backward(g.members) {
		m.cancel()
		if err := m.wait(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: it is still running: %w", m.name, err))
			continue
		}
		errs = append(errs, m.err)
	}
	g.members = nil
	return errors.Join(errs...)
}

// wait returns nil when the member has ended, or the cause if ctx ends first.
func (m *member) wait(ctx context.Context) error {
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-m.done:
		return nil
	default:
		return context.Cause(ctx)
	}
}
