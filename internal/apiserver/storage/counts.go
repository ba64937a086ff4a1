package storage

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Counts knows how many objects each resource has, and how large they are, to estimate what a list
// will cost. The library would ask every resource once a minute. Here a list asks for its own, and is
// told what the one before has found out, so that an idle server counts nothing.
type Counts struct {
	ctx context.Context // that of every question

	mu     sync.Mutex
	of     map[string]*count
	closed bool
	asking sync.WaitGroup
}

// count is guarded by the mutex of its Counts.
type count struct {
	source storage.Interface
	last   storage.Stats
	at     time.Time // when last was true; zero if nobody has asked yet
	asked  time.Time // when somebody asked last
}

const (
	// countAge is how old a count gets before it is asked for again: the library's interval.
	countAge = time.Minute
	// countTimeout ends a question that storage does not answer.
	countTimeout = 10 * time.Second
)

var _ flowcontrolrequest.StorageObjectCountTracker = &Counts{}

func newCounts(ctx context.Context) *Counts { return &Counts{ctx: ctx, of: map[string]*count{}} }

// add makes source the storage of a resource. The function that it returns takes that back.
func (c *Counts) add(resource schema.GroupResource, source storage.Interface) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, n := resource.String(), &count{source: source}
	c.of[key] = n
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.of[key] == n {
			delete(c.of, key)
		}
	}
}

// Get returns what is known about a resource. A count that storage has not confirmed for a long time,
// though asked, is told from one that is fine by an error.
func (c *Counts) Get(resource string) (storage.Stats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.of[resource]
	if n == nil {
		return storage.Stats{}, flowcontrolrequest.ObjectCountNotFoundErr
	}
	now := time.Now()
	if now.Sub(n.at) > countAge && now.Sub(n.asked) > countTimeout && !c.closed {
		n.asked = now
		c.asking.Go(func() { c.ask(n) })
	}
	switch {
	case n.at.IsZero():
		return storage.Stats{}, flowcontrolrequest.ObjectCountNotFoundErr
	case n.asked.Sub(n.at) > countAge+2*countTimeout:
		return n.last, flowcontrolrequest.ObjectCountStaleErr
	}
	return n.last, nil
}

func (c *Counts) ask(n *count) {
	ctx, cancel := context.WithTimeout(c.ctx, countTimeout)
	defer cancel()
	stats, err := n.source.Stats(ctx)
	if err != nil {
		return // Get tells that the count is old
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.last, n.at = stats, time.Now()
}

// close waits until nobody asks any more.
func (c *Counts) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.asking.Wait()
}

// Set implements the library's interface. Nothing polls, so nothing calls it.
func (c *Counts) Set(string, storage.Stats) {}

// RunUntil implements the library's interface. There is nothing to maintain.
func (c *Counts) RunUntil(<-chan struct{}) {}
