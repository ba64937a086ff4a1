package image

import "runtime"

// AwaitWaiters returns once n callers wait for the pull of a reference.
func (s *Store) AwaitWaiters(ref string, n int) {
	for ; ; runtime.Gosched() {
		s.flights.mu.Lock()
		for _, fl := range s.flights.all {
			if fl.ref == ref && fl.waiters == n {
				s.flights.mu.Unlock()
				return
			}
		}
		s.flights.mu.Unlock()
	}
}
