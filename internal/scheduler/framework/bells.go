package framework

import "sync"

// Bells wake plugins that wait in PreBind for an object to change.
type Bells struct {
	mu        sync.Mutex
	listeners map[string]map[chan struct{}]struct{}
}

// Listen returns a channel with room for one, on which something arrives when one of the bells has rung, and what
// ends that.
func (b *Bells) Listen(names ...string) (<-chan struct{}, func()) {
	rung := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners == nil {
		b.listeners = map[string]map[chan struct{}]struct{}{}
	}
	for _, name := range names {
		if b.listeners[name] == nil {
			b.listeners[name] = map[chan struct{}]struct{}{}
		}
		b.listeners[name][rung] = struct{}{}
	}
	return rung, func() { b.forget(rung, names) }
}

func (b *Bells) forget(rung chan struct{}, names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		delete(b.listeners[name], rung)
		if len(b.listeners[name]) == 0 {
			delete(b.listeners, name)
		}
	}
}

// Ring wakes everybody who listens to this bell.
func (b *Bells) Ring(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for rung := range b.listeners[name] {
		select {
		case rung <- struct{}{}:
		default:
		}
	}
}
