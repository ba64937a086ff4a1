package volumes

import (
	"sync"
)

// bells wake bindings that wait for a claim or a node to change.
type bells struct {
	mu        sync.Mutex
	listeners map[string]map[chan struct{}]struct{}
}

// listen returns a channel with room for one, on which something arrives when one of the bells has rung, and what
// ends that.
func (b *bells) listen(names ...string) (<-chan struct{}, func()) {
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

func (b *bells) forget(rung chan struct{}, names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		delete(b.listeners[name], rung)
		if len(b.listeners[name]) == 0 {
			delete(b.listeners, name)
		}
	}
}

// ring wakes everybody who listens to this bell.
func (b *bells) ring(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for rung := range b.listeners[name] {
		select {
		case rung <- struct{}{}:
		default:
		}
	}
}

func bellOfClaim(key string) string { return "claim " + key }
func bellOfNode(name string) string { return "node " + name }
