package sim

import (
	"sync"
	"time"
)

// dice draws at random. A draw depends on the seed, on its purpose and on how many were drawn for
// that purpose before, so that goroutines cannot change each other's luck.
type dice struct {
	seed uint64

	// jostle, if not nil, is called at every draw, to stir up the order of goroutines.
	jostle func()

	mu    sync.Mutex
	drawn map[string]uint64
}

func newDice(seed uint64) *dice { return &dice{seed: seed, drawn: map[string]uint64{}} }

// roll returns a number below n.
func (d *dice) roll(n uint64, what string) uint64 {
	if d.jostle != nil {
		d.jostle()
	}
	d.mu.Lock()
	count := d.drawn[what]
	d.drawn[what]++
	d.mu.Unlock()
	return mix(fnv(what)^mix(d.seed)^mix(count+1<<32)) % n
}

// fnv is the hash FNV-1a, without the allocations of hash/fnv.
func fnv(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// mix spreads the bits of a number (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// chance returns true with probability p.
func (d *dice) chance(p float64, what string) bool {
	return float64(d.roll(1<<32, what)) < p*(1<<32)
}

// upTo returns a duration in (0, most], to the nanosecond: no two things happen at the same moment.
func (d *dice) upTo(most time.Duration, what string) time.Duration {
	return time.Duration(d.roll(uint64(most), what)) + 1
}
