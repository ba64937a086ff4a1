package podsource

import "sync"

// Awaited are the sources that have not yet delivered all that they have. Until the last one has, a
// pod that no source names may still be wanted.
type Awaited struct {
	then func()
	all  chan struct{}

	mu   sync.Mutex
	left map[string]bool
}

// Await waits for the sources of those names.
func Await(names ...string) *Awaited {
	a := &Awaited{then: func() {}, all: make(chan struct{}), left: map[string]bool{}}
	for _, name := range names {
		a.left[name] = true
	}
	return a
}

// Then sets what happens once all have delivered, before All is closed. It has to be called before the
// first of them starts.
func (a *Awaited) Then(f func()) { a.then = f }

// Delivered notes that a source has delivered.
func (a *Awaited) Delivered(name string) {
	a.mu.Lock()
	last := a.left[name] && len(a.left) == 1
	delete(a.left, name)
	a.mu.Unlock()
	if last {
		a.then()
		close(a.all)
	}
}

// Waits reports whether a source has yet to deliver.
func (a *Awaited) Waits(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.left[name]
}

// All is closed when all have delivered.
func (a *Awaited) All() <-chan struct{} { return a.all }
