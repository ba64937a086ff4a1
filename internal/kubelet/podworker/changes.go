package podworker

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Changes are the pods that have changed since somebody who watches them last looked. However slow that is, each is there once,
// so that nothing is lost and nothing piles up.
type Changes struct {
	more chan struct{}

	mu  sync.Mutex
	all sets.Set[types.UID]
}

// Watch collects the pods that change from now on, that come and go included, until stop is called.
func (p *Pods) Watch() (c *Changes, stop func()) {
	c = &Changes{more: make(chan struct{}, 1), all: sets.New[types.UID]()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchLocked(append(p.watching(), c))
	return c, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.watchLocked(slices.DeleteFunc(p.watching(), func(o *Changes) bool { return o == c }))
	}
}

// watching returns a copy of the list of those who watch.
func (p *Pods) watching() []*Changes {
	if list := p.watchers.Load(); list != nil {
		return slices.Clone(*list)
	}
	return nil
}

func (p *Pods) watchLocked(list []*Changes) { p.watchers.Store(&list) }

func (p *Pods) changed(uid types.UID) {
	list := p.watchers.Load()
	if list == nil {
		return
	}
	for _, c := range *list {
		c.add(uid)
	}
}

func (c *Changes) add(uid types.UID) {
	c.mu.Lock()
	c.all.Insert(uid)
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// More gets something when there are changes.
func (c *Changes) More() <-chan struct{} { return c.more }

// Take returns the pods that have changed since the last call.
func (c *Changes) Take() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.all.UnsortedList()
	c.all = sets.New[types.UID]()
	return out
}
