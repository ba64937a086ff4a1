package sim

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/podplan"
)

// statusWriter sends the newest status to the API server as status.Manager does, but without making
// patches, which would take half of a life's time. Most lives have it instead of the real one.
type statusWriter struct {
	n *node

	wake chan struct{}

	mu    sync.Mutex
	want  *v1.PodStatus
	dirty bool
	idle  []chan struct{}
}

func newStatusWriter(n *node) *statusWriter { return &statusWriter{n: n, wake: make(chan struct{}, 1)} }

func (c *statusWriter) Put(_ *v1.Pod, st v1.PodStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want, c.dirty = &st, true // nobody changes a status that a worker has put
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *statusWriter) PutSoon(pod *v1.Pod, st v1.PodStatus) { c.Put(pod, st) }

func (c *statusWriter) Drop(types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
}

func (c *statusWriter) settleLocked() {
	c.dirty = false
	for _, ch := range c.idle {
		close(ch)
	}
	c.idle = nil
}

func (c *statusWriter) Flush(ctx context.Context, _ types.UID) error {
	c.mu.Lock()
	if !c.dirty {
		c.mu.Unlock()
		return nil
	}
	idle := make(chan struct{})
	c.idle = append(c.idle, idle)
	c.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run writes until the context ends.
func (c *statusWriter) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
		for again := true; again; {
			again = c.send(ctx) && c.n.wait(ctx, 300*time.Millisecond, "statusWriter") == nil
		}
	}
}

// send writes the newest status, and reports whether to try again.
func (c *statusWriter) send(ctx context.Context) (again bool) {
	c.mu.Lock()
	want := c.want
	dirty := c.dirty
	c.mu.Unlock()
	if !dirty || ctx.Err() != nil {
		return false
	}
	api := c.n.life.api
	_, err := call(ctx, c.n, "api patch", "", func(context.Context) (struct{}, error) { return struct{}{}, api.writeStatus(want) })
	if err != nil && !apierrors.IsNotFound(err) {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.want == want {
		c.settleLocked()
	}
	return c.dirty
}

// writeStatus replaces the status, except for conditions that others own.
func (a *apiServer) writeStatus(want *v1.PodStatus) error {
	a.mu.Lock()
	if a.pod == nil {
		a.mu.Unlock()
		return apierrors.NewNotFound(podResource, "p")
	}
	st := new(v1.PodStatus)
	*st = podplan.Acceptable(a.pod, a.pod.Status, *want) // nobody changes what a worker has put
	others := slices.DeleteFunc(slices.Clone(a.pod.Status.Conditions), func(c v1.PodCondition) bool { return podplan.OwnsCondition(c.Type) })
	st.Conditions = append(others, slices.DeleteFunc(slices.Clone(st.Conditions), func(c v1.PodCondition) bool {
		return slices.ContainsFunc(others, func(o v1.PodCondition) bool { return o.Type == c.Type })
	})...)
	before, err1 := a.pod.Status.Marshal()
	after, err2 := st.Marshal()
	if err1 == nil && err2 == nil && string(before) == string(after) {
		a.mu.Unlock()
		return nil
	}
	_, err := a.writeLocked(st)
	a.mu.Unlock()
	if err == nil {
		a.changed()
	}
	return err
}
